# SPDX-License-Identifier: MIT
#
# make check-doctor   [check 30 s] gdrcopy_doctor: its texts, and the program on each simulated driver

.PHONY: check-doctor
check-doctor: $(DOUBLES) $(LIB) $(BIN)/gdrcopy_doctor
	@$(RUN) --go doctor-texts $(SIM) $(GO) test -v -count=1 ./cmd/...
	@CC='$(CC)' $(RUN) doctor-program tests/doctor/doctor.sh $(abspath $(B))
