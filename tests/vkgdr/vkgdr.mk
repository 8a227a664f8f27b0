# SPDX-License-Identifier: MIT
#
# make check-vkgdr    libvkgdr.so on the doubles, and as it is installed; 10 s

VKROOT    := $(B)/vkgdr-root

.PHONY: check-vkgdr
$(BIN)/vkgdr_test: tests/vkgdr/vkgdr_test.c $(T)/cuda_dl.c $(VKGDR)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c,$^) -L$(B) -lvkgdr -ldl -lpthread -Wl,-rpath,'$$ORIGIN/..'

check-vkgdr: $(BIN)/vkgdr_test $(DOUBLES) all
	@rm -rf $(VKROOT) $(B)/*.pc
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(VKROOT)) prefix=/usr libdir=/usr/lib
	@export GDR_RESULTS=$(B)/vkgdr/results; $(RUN) --clear; \
		for b in $(BACKENDS); do $(RUN) vkgdr-$$b $(SIM) $(ON) $$b $(BIN)/vkgdr_test; done; \
		CC='$(CC)' CXX='$(CXX)' $(RUN) vkgdr-installed $(SIM) tests/vkgdr/installed.sh $(abspath $(VKROOT)) /usr/lib; \
		$(RUN) --total
	@rm -rf $(VKROOT) $(B)/*.pc
