# SPDX-License-Identifier: MIT
#
# make check-consumers-quick  [check 30 s] programs that use the library: NCCL's, DPDK's and Python's ways
# make check-consumers  [more 1 min] these and UCX, check-ucx; the first time 10 min and 0.8 GB

CONSUMERS := $(addprefix $(BIN)/consumer_,nccl dpdk)
# What a consumer that is built here takes for a CUDA toolkit, less its headers.
CUDART    := $(D)/libcudart.so $(D)/libnvidia-ml.so.1

.PHONY: check-consumers check-consumers-quick check-ucx

check-consumers-quick: $(CONSUMERS) $(DOUBLES)
	@for b in dmabuf rm; do \
		for c in nccl dpdk; do $(RUN) consumer-$$c-$$b $(SIM) $(ON) $$b $(BIN)/consumer_$$c; done; \
		$(RUN) consumer-python-$$b $(SIM) $(ON) $$b python3 tests/consumers/python.py; \
	done

check-consumers: check-consumers-quick check-ucx

check-ucx: $(LIB) $(DOUBLES) $(CUDART)
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(B)/consumers) prefix=/usr libdir=/usr/lib
	@$(RUN) consumer-ucx $(SIM) tests/consumers/ucx.sh $(abspath $(B))

$(CONSUMERS): $(BIN)/consumer_%: tests/consumers/%.c tests/consumers/load.h $(CUDA_DL) $(LIB) $(TOOL_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) -ldl

$(D)/libcudart.so: tests/doubles/cudart_sim.c $(D)/libcuda.so.1
	$(CC) -shared -fPIC -fvisibility=hidden -std=gnu11 $(CFLAGS) $(WARN) -Wl,--no-undefined -Wl,-soname,$(@F) -o $@ $^ -lpthread

$(D)/libnvidia-ml.so.1: tests/doubles/nvml_sim.c
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -fvisibility=hidden -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $<
