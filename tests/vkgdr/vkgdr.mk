# SPDX-License-Identifier: MIT
#
# make check-vkgdr    [check 10 s] libvkgdr.so on the doubles, and as it is installed

VKROOT    := $(B)/vkgdr-root

.PHONY: check-vkgdr
$(BIN)/vkgdr_test: tests/vkgdr/vkgdr_test.c tools/tap.h $(CUDA_DL) $(VKGDR)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) -L$(B) -lvkgdr -ldl -lpthread -Wl,-rpath,'$$ORIGIN/..'

$(BIN)/vkgdr_steps: tests/vkgdr/steps.c vkgdr/vkgdr.c include/vkgdr.h tools/tap.h $(CUDA_DL)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) -ldl

check-vkgdr: $(BIN)/vkgdr_test $(BIN)/vkgdr_steps $(DOUBLES) all
	@$(RUN) vkgdr-steps $(SIM) $(BIN)/vkgdr_steps
	@rm -rf $(VKROOT) $(B)/*.pc
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(VKROOT)) prefix=/usr libdir=/usr/lib
	@for b in $(BACKENDS); do $(RUN) vkgdr-$$b $(SIM) $(ON) $$b $(BIN)/vkgdr_test; done
	@CC='$(CC)' CXX='$(CXX)' $(RUN) vkgdr-installed $(SIM) tests/vkgdr/installed.sh $(abspath $(VKROOT)) /usr/lib
	@rm -rf $(VKROOT) $(B)/*.pc
