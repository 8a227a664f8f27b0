# SPDX-License-Identifier: MIT
#
# make check-capi     [check 10 s] the C front by itself: its environment, and who calls whom
# make check-go-oldest [more 3 min] the library of the oldest Go that go.mod allows

$(BIN)/env_test: tests/capi/env.c capi/env.c $(COPY_C) $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(filter %.c,$^) -lpthread

# The newest is the one that all else is built with.
GO_OLDEST := go$(shell sed -n 's/^go //p' go.mod)
OLDEST    := $(B)/go-oldest

.PHONY: go-oldest
go-oldest:
	$(MAKE) --no-print-directory lib B=$(OLDEST) GO='env GOTOOLCHAIN=$(GO_OLDEST) $(GO)'
	grep -aqF '$(GO_OLDEST)' $(OLDEST)/libgdrapi.so.$(VERSION)
