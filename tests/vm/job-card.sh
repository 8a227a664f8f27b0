# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# job-card.sh - sourced by guest-init.sh: a capture card's frames into GPU memory, with the
# simulated card, nvidia.ko and libcuda, on gdrdrv. Each frame is compared in GPU memory, all bytes.
# From the host: CARD_FRAME (65536 bytes), CARD_PERIOD (40000 us), CARD_FRAMES (50),
# CARD_WAYS (read copy dma), and CARD_ONLY, so that nothing but these frames is tried.
export LD_LIBRARY_PATH=/lib CUDA_SIM_KERNEL=1 CUDA_SIM_DMABUF=1 GDR_TEST_DOUBLES=1 GDRCOPY_BACKEND=gdrdrv
cpu=$(($(nproc) - 1))
frame=${CARD_FRAME:-65536} period=${CARD_PERIOD:-40000} frames=${CARD_FRAMES:-50}

# card ARGS...: another card.
card() {
	[ ! -e /dev/card_sim ] || rmmod card_sim
	insmod /card_sim.ko "$@" && [ -c /dev/card_sim ]
	result $? "a card with $*"
}

# take WAY FRAMES ARGS...: no frame is lost or damaged, and it runs in real time.
take() {
	way=$1 n=$2
	shift 2
	/bin/capture -d /dev/card_sim -m "$way" -n "$n" -p "$period" -c $cpu -r 50 -a "$@" >/tmp/out 2>&1
	rc=$?
	cat /tmp/out
	[ $rc -eq 0 ] && grep -q "^$n frames of .* 0 lost, 0 damaged" /tmp/out &&
		! grep -q 'going on without' /tmp/out
	result $? "$n frames by $way $*"
}

# real_time PID: its main thread has SCHED_FIFO at 50 and one CPU, and locked memory.
real_time() {
	set -- "$1" "$(cut -d' ' -f40,41 "/proc/$1/stat")"
	[ "$2" = "50 1" ] && grep -q "^Cpus_allowed_list:.$cpu\$" "/proc/$1/status" &&
		awk '/^VmLck:/ { locked = $2 } END { exit !locked }' "/proc/$1/status"
}

load 1
result $? "modules load"
# An emulated CPU on a busy host is late by many slots now and then.
card frame="$frame" period_us="$period" slots=64
for way in ${CARD_WAYS:-read copy dma}; do
	take "$way" "$frames" -b "$frame" -k 64
done
if [ -z "${CARD_ONLY-}" ]; then
	/bin/capture -d /dev/card_sim -m dma -n 1000000 -b "$frame" -k 64 -c $cpu -r 50 >/tmp/out 2>&1 &
	pid=$! n=0
	until real_time $pid || [ $((n += 1)) -gt 300 ] || ! kill -0 $pid; do
		usleep 100000
	done
	real_time $pid
	result $? "it has SCHED_FIFO, one CPU and locked memory"
	! rmmod card_sim 2>/dev/null && ! rmmod nvidia 2>/dev/null
	result $? "neither the card nor the driver unloads during DMA"
	kill -9 $pid
	wait $pid
	# With a single slot every second frame is lost: capture says so, by its status too.
	card frame=8192 period_us=100 slots=1
	/bin/capture -d /dev/card_sim -m read -n 50 -b 8192 -p 100 -a >/tmp/out 2>&1
	[ $? -eq 1 ] && grep -E '^50 frames .* [1-9][0-9]* lost, 0 damaged' /tmp/out
	result $? "lost frames are counted, and none is damaged"
fi
rmmod card_sim
result $? "the card unloads"
unload
detectors "the card"
clean_log "the card"
