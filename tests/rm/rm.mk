# SPDX-License-Identifier: MIT
#
# make check-rm       [check 20 s] every kind of CUDA memory on the rm backend, and how its requests are watched

$(BIN)/rm_machines: $(O)/tests/rm/rm_machines.o $(CUDA_DL) $(LIB)
$(BIN)/rm_memory: $(O)/tests/rm/rm_memory.o $(CASES) $(CUDA_DL) $(LIB)
$(BIN)/rm_heard: $(O)/tests/rm/heard.o $(CASES) $(CUDA_DL) $(LIB)
$(BIN)/rm_faults: $(O)/tests/rm/faults.o $(CASES) $(CUDA_DL) $(LIB)

# A second file is a second library to the loader.
$(BIN)/rm_libraries: $(O)/tests/rm/libraries.o $(LOADERS) $(CUDA_DL) | $(LIB) $(B)/watched/libgdrapi_copy.so $(B)/watched/golib.so

$(B)/watched/libgdrapi_copy.so: $(LIB)
	@mkdir -p $(@D)
	cp $< $@

$(B)/watched/golib.so: tests/rm/golib/main.go
	CGO_ENABLED=1 $(GO) build -buildmode=c-shared -o $@ ./$(<D)
	rm -f $(basename $@).h

$(BIN)/hear_test: $(call of,tests/rm/hear_test.c capi/guest/hear.c capi/guest/heard.c capi/guest/reserve.c)
