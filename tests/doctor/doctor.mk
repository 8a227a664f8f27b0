# SPDX-License-Identifier: MIT
#
# make check-doctor   gdrcopy_doctor: its texts, and the program on each simulated driver

DOCTOR    := $(BIN)/gdrcopy_doctor
TOOLS     += $(DOCTOR)
tools: $(DOCTOR)

# What the program calls its commit; a build without git may say it.
COMMIT    ?= $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)

# Without cgo it is bound to no version of the C library. Made anew each time, for go
# knows what has changed.
.PHONY: $(DOCTOR) check-doctor
$(DOCTOR):
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
		-ldflags '-X main.version=$(RELEASE) -X main.commit=$(COMMIT)' -o $@ ./cmd/gdrcopy_doctor

check-doctor: $(DOUBLES) $(LIB) $(DOCTOR)
	@$(RUN) --go doctor-texts $(SIM) $(GO) test -v -count=1 ./cmd/...
	@CC='$(CC)' $(RUN) doctor-program tests/doctor/doctor.sh $(abspath $(B))
