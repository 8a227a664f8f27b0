# SPDX-License-Identifier: MIT
#
# make check-copy     [check 20 s] the copy routines, what copies refuse, and their fences
# make check-cross    [more 1 min] the copy routines of other machines, under emulation
# make check-tsan     [more 20 s] the data plane under ThreadSanitizer

COPY      := $(call of,capi/copy/*.c)
DATA      := $(call of,capi/copy_one.c capi/copy_many.c) $(COPY)
$(BIN)/copy_test: $(O)/$(T)/copy/test.o $(COPY)
$(BIN)/data_test: $(O)/$(T)/copy/data.o $(DATA)
$(BIN)/fences: $(O)/$(T)/copy/fences.o $(DATA)
$(O)/capi/%.o: private FLAGS = -Icapi

STATIC    := $(addprefix $(B)/static-,arm64/bin/copy_test ppc64le/bin/copy_test)
.PHONY: $(STATIC)
$(B)/static-arm64/bin/copy_test: need-aarch64-linux-gnu-gcc
$(B)/static-ppc64le/bin/copy_test: need-powerpc64le-linux-gnu-gcc
$(STATIC): $(B)/static-%/bin/copy_test:
	$(call variant,static-$*) CC=$(ARCH_CC_$*)-gcc OBJCOPY=$(ARCH_CC_$*)-objcopy HOW=-static $@
