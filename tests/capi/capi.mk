# SPDX-License-Identifier: MIT
#
# make check-capi     the C front by itself: its environment, and who calls whom

.PHONY: check-capi
check-capi: $(BIN)/env_test
	@$(RUN) capi-environment $(BIN)/env_test
	@CC='$(CC)' $(RUN) capi-circles tests/capi/circles.sh $(B)

$(BIN)/env_test: tests/capi/env.c capi/env.c $(COPY_C) $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(filter %.c,$^) -lpthread
