# SPDX-License-Identifier: MIT
#
# make check-capi     [check 15 s] what the environment asks for; memory at a limit; who calls whom; which Go the build takes
# make check-go-oldest [more 3 min] the library of the oldest Go that go.mod allows

$(BIN)/env_test: $(call of,tests/capi/env.c capi/guest/env.c)
$(BIN)/reserve_test: $(call of,tests/capi/reserve.c capi/guest/reserve.c)

# The newest is the one that all else is built with.
GO_OLDEST := $(firstword $(shell sed '/^\#/d' capi/guest/build/go_versions))

.PHONY: go-oldest
go-oldest:
	$(call variant,go-oldest) lib GO='env GOTOOLCHAIN=$(GO_OLDEST) $(lastword $(GO))'
	grep -aqF '$(GO_OLDEST)' $(B)/go-oldest/libgdrapi.so.$(VERSION)
