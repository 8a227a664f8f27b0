# SPDX-License-Identifier: MIT
#
# make check-rm       [check 20 s] every kind of CUDA memory on the rm backend, and how its requests are watched

WATCHED   := $(addprefix $(B)/watched/,$(addsuffix .so,watched_lazy watched_relro watched_again))
WATCH     := tests/rm/watch_test.c capi/guest/watch.c

.PHONY: watch-test
watch-test: $(BIN)/watch_test $(WATCHED)

$(BIN)/rm_memory $(BIN)/rm_machines: $(BIN)/%: tests/rm/%.c $(CUDA_DL) $(LIB) $(GUEST_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c %.o,$^) $(LINK)

$(BIN)/rm_faults: tests/rm/faults.c $(T)/guest/main.c $(CUDA_DL) $(LIB) $(GUEST_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c %.o,$^) $(LINK)

# A second file is a second library to the loader.
$(BIN)/rm_libraries: tests/rm/libraries.c $(T)/guest/main.c $(CUDA_DL) $(LIB) $(GUEST_H) $(EVERY_H) | $(B)/watched/libgdrapi_copy.so $(B)/watched/golib.so
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) $(EVERY) -o $@ $(filter %.c %.o,$^) -ldl -lpthread

$(B)/watched/libgdrapi_copy.so: $(LIB)
	@mkdir -p $(@D)
	cp $< $@

$(B)/watched/golib.so: tests/rm/golib/main.go
	@mkdir -p $(@D)
	CGO_ENABLED=1 $(GO) build -buildmode=c-shared -o $@ ./$(<D)
	rm -f $(basename $@).h

WATCH_CC   = $(C11) -Icapi -o $@ $(filter %.c %.o,$^) -ldl -lpthread
$(BIN)/watch_test $(BIN)/watch_tsan $(B)/asan/watch_test: $(WATCH) tests/rm/watched.h capi/guest/watch.h tools/tap.h

$(BIN)/watch_test:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(WATCH_CC)

$(BIN)/watch_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(WATCH_CC)

$(B)/asan/watch_test:
	@mkdir -p $(@D)
	$(CC) -O1 -g $(SANITIZE) $(WATCH_CC)

# How the stand-in reaches ioctl: through a slot that is bound when it is called, or when the stand-in is loaded
# and then read-only.
$(B)/watched/watched_lazy.so: HOW = -fplt -Wl,-z,lazy
$(B)/watched/watched_relro.so: HOW = -fplt -Wl,-z,now -Wl,-z,relro
$(B)/watched/watched_%.so: tests/rm/watched.c tests/rm/watched.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -shared -fPIC -o $@ $< $(HOW)

# The same file under another name is another object to the loader.
$(B)/watched/watched_again.so: $(B)/watched/watched_lazy.so
	cp $< $@
