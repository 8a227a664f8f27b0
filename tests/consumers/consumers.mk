# SPDX-License-Identifier: MIT
#
# make check-consumers-quick  [check 30 s] programs that use the library: the ways of NCCL, NVSHMEM, NIXL, TensorRT-LLM, DPDK
# make check-consumers  [more 8 min] these and the three below; the first time 25 min and 0.9 GB
# make check-ucx      [more 4 min] UCX of Debian's sources, built with the library
# make check-libfabric  [more 2 min] libfabric of Debian's sources, the same way
# make check-openmpi  [more 1 min] two ranks of Debian's Open MPI over that UCX

# The library of front.c. It needs the one behind it by a path, for both have one name: a
# library that is not there lends the linker that path.
FRONT     := $(B)/front/libgdrapi.so

BUILT     := ucx libfabric openmpi
.PHONY: check-consumers $(addprefix check-,$(BUILT)) consumers-root
check-consumers:
	@$(call RUN_SUITE,-test.run '^consumers(_quick)?$$')
$(addprefix check-,$(BUILT)): check-%:
	@$(call RUN_SUITE,-test.run '^consumers$$/^$*$$')

# Where the consumers that are built here look for the library.
consumers-root: root
	@mkdir -p $(B)/consumers
	@rm -rf $(B)/consumers/usr
	@ln -s ../root/usr $(B)/consumers/usr

$(FRONT): $(O)/tests/consumers/front.o | $(LIB)
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,'$$ORIGIN/../libgdrapi.so.2' -o $(@D)/behind.so -x c /dev/null
	$(CC) -shared -Wl,-soname,libgdrapi.so.2 -Wl,--no-as-needed -o $@.2 $< $(@D)/behind.so -ldl -lpthread
	@rm $(@D)/behind.so
	ln -sf $(@F).2 $@

$(D)/libcudart.so: $(call of,tests/doubles/cudart_sim.c) $(D)/libcuda.so.1
