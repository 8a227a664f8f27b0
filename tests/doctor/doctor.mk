# SPDX-License-Identifier: MIT
#
# make check-doctor   [check 30 s] gdrcopy_doctor: its texts, the program on each simulated driver, docs/troubleshooting.md

.PHONY: check-doctor
check-doctor: need-python3 $(DOUBLES) $(LIB) $(BIN)/gdrcopy_doctor
	@$(RUN) --go doctor-texts $(SIM) $(GO) test -v -count=1 ./cmd/gdrcopy_doctor/... ./tests/doctor/...
	@CC='$(CC)' $(RUN) doctor-program tests/doctor/doctor.sh $(abspath $(B))
