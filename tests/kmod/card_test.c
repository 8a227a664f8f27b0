// SPDX-License-Identifier: MIT
/*
 * card_test - tests the simulated capture card, and its DMA into memory that
 * gdr_mem_export_dmabuf exports. It runs in the virtual machine, with the simulated
 * nvidia.ko and libcuda; TAP output.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gdrapi.h>
#include <gdrapi_ext.h>

#include "../../examples/capture/card_uapi.h"
#include "nvidia_sim_uapi.h"
#include "tap.h"

/* The calls of the simulated libcuda. */
int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **ctx, int dev);
int cuCtxSetCurrent(void *ctx);
int cuMemsetD8_v2(uint64_t p, unsigned char v, size_t n);
int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t n);

#define CARD "/dev/card_sim"
#define PAGE ((size_t)4096)
#define IS(got, want) is_at((long)(got), (long)(want), #got " is " #want, __LINE__)
#define TRUE(cond) IS(!!(cond), 1)

/* The second slot lies across two of the GPU's pages, which are not neighbours on the bus. */
enum { SLOTS = 3, STRIDE = 60 << 10, MARK = 0x5a };

static struct tap tap;
static struct card_info card;	/* frame, slots and period are those of the module */

/* GPU memory, and a dma-buf of it. */
struct gpu {
	gdr_t g;
	gdr_mem_t mem;
	unsigned long dev;
	size_t size;
	int fd;
};

/* The test goes on after a failure. */
static void is_at(long got, long want, const char *what, int line)
{
	if (!tap_ok(&tap, got == want, "%s", what))
		printf("# line %d: got %ld, want %ld\n", line, got, want);
}

static int card_open(int flags)
{
	return open(CARD, O_RDWR | O_CLOEXEC | flags);
}

static struct card_info card_info(int fd)
{
	struct card_info info = { .lost = 0 };

	IS(ioctl(fd, CARD_INFO, &info), 0);
	return info;
}

static void periods(unsigned int n)
{
	usleep((useconds_t)(n * card.period_ns / 1000));
}

/* Whether it is one frame, whole. */
static bool is_frame(const uint64_t *words, uint32_t number)
{
	for (size_t i = 0; i < card.frame / sizeof(*words); i++)
		if (words[i] != card_word(number, i))
			return false;
	return true;
}

static int errno_of(long result)
{
	return result < 0 ? errno : 0;
}

static void test_one_program(void)
{
	int fd = card_open(0);

	TRUE(fd >= 0);
	IS(errno_of(card_open(0)), EBUSY);
	close(fd);
	fd = card_open(0);
	TRUE(fd >= 0);
	card = card_info(fd);
	TRUE(card.frame >= 64 && card.frame % 8 == 0 && card.slots && card.period_ns);
	IS(card.start_ns, 0);
	IS(errno_of(ioctl(fd, _IO(CARD_IOC, 99))), ENOTTY);
	close(fd);
}

static void test_read(void)
{
	uint64_t *frame = malloc(card.frame), *nowhere = (uint64_t *)PAGE;
	int fd = card_open(O_NONBLOCK);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint32_t next = 0;

	IS(errno_of(read(fd, frame, 8)), EINVAL);
	IS(errno_of(read(fd, frame, card.frame - 8)), EINVAL);
	/* It starts the card. A frame is there at once only where this thread lost its CPU. */
	if (read(fd, frame, card.frame) < 0) {
		IS(errno, EAGAIN);
	} else {
		TRUE(is_frame(frame, next));
		next++;
	}
	TRUE(card_info(fd).start_ns > 0);
	IS(poll(&p, 1, 10000), 1);
	IS(p.revents, POLLIN);
	/* What could not be given is given again. */
	IS(errno_of(read(fd, nowhere, card.frame)), EFAULT);
	IS(errno_of(read(fd, nowhere, 4)), EFAULT);
	IS(read(fd, frame, card.frame), card.frame);
	TRUE(is_frame(frame, next));
	next++;
	fcntl(fd, F_SETFL, 0);
	IS(read(fd, frame, card.frame), card.frame);
	TRUE(is_frame(frame, next));
	close(fd);
	free(frame);
}

static void test_mmap(void)
{
	size_t size = ((size_t)card.slots * card.frame + PAGE - 1) / PAGE * PAGE;
	int fd = card_open(0);
	uint32_t notice;
	bool whole = true;
	uint8_t *ring;

	TRUE(mmap(NULL, size + PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)size) == MAP_FAILED);
	ring = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	TRUE(ring != MAP_FAILED);
	for (uint32_t i = 0; i < 2 * card.slots; i++) {
		const void *slot = ring + i % card.slots * (size_t)card.frame;

		IS(read(fd, &notice, sizeof(notice)), sizeof(notice));
		IS(notice, i + 1);
		whole = whole && card_number(*(const uint64_t *)slot) >= i &&
			is_frame(slot, card_number(*(const uint64_t *)slot));
	}
	TRUE(whole);
	/* The mapping holds the card. */
	close(fd);
	IS(errno_of(card_open(0)), EBUSY);
	munmap(ring, size);
	fd = card_open(0);
	TRUE(fd >= 0);
	close(fd);
}

/* Frames that nobody fetches are lost; those that were there before are not. */
static void test_lost(void)
{
	uint64_t *frame = malloc(card.frame);
	int fd = card_open(0);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint32_t lost, gap;

	IS(poll(&p, 1, 10000), 1);
	while ((lost = card_info(fd).lost) < 3)
		periods(1);
	for (uint32_t i = 0; i < card.slots; i++) {
		IS(read(fd, frame, card.frame), card.frame);
		TRUE(is_frame(frame, i));
	}
	IS(read(fd, frame, card.frame), card.frame);
	gap = card_number(frame[0]) - card.slots;
	TRUE(is_frame(frame, card.slots + gap));
	TRUE(gap >= lost && gap <= card_info(fd).lost);
	close(fd);
	free(frame);
}

static void make_context(void)
{
	void *ctx;

	IS(cuInit(0), 0);
	IS(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	IS(cuCtxSetCurrent(ctx), 0);
}

static struct gpu gpu_new(void)
{
	struct gpu gpu = { .g = gdr_open() };

	TRUE(gpu.g != NULL);
	IS(gdr_mem_alloc(gpu.g, 0, SLOTS * STRIDE, 0, &gpu.mem), 0);
	IS(gdr_mem_get_device_ptr(gpu.g, gpu.mem, &gpu.dev, &gpu.size), 0);
	IS(cuMemsetD8_v2(gpu.dev, MARK, gpu.size), 0);
	IS(gdr_mem_export_dmabuf(gpu.g, gpu.mem, 0, &gpu.fd), 0);
	return gpu;
}

static void gpu_free(struct gpu *gpu)
{
	close(gpu->fd);
	IS(gdr_mem_free(gpu->g, gpu->mem), 0);
	IS(gdr_close(gpu->g), 0);
}

static int card_dma(int card_fd, int fd, uint32_t slots, uint64_t stride)
{
	struct card_dma p = { .fd = fd, .slots = slots, .stride = stride };

	return errno_of(ioctl(card_fd, CARD_DMA, &p));
}

static void test_dma_refuses(void)
{
	int fd = card_open(0), null = open("/dev/null", O_RDWR);
	uint64_t *frame = malloc(card.frame);
	struct gpu gpu = gpu_new();
	uint32_t notice;

	IS(card_dma(fd, -1, SLOTS, card.frame), EBADF);
	IS(card_dma(fd, null, SLOTS, card.frame), EINVAL);
	IS(card_dma(fd, gpu.fd, 0, card.frame), EINVAL);
	IS(card_dma(fd, gpu.fd, 257, card.frame), EINVAL);
	IS(card_dma(fd, gpu.fd, SLOTS, card.frame - 8), EINVAL);
	IS(card_dma(fd, gpu.fd, SLOTS, card.frame + 4), EINVAL);
	IS(card_dma(fd, gpu.fd, SLOTS, gpu.size / SLOTS / 8 * 8 + 8), EINVAL);
	IS(card_dma(fd, gpu.fd, SLOTS, -8ull), EINVAL);
	IS(errno_of(ioctl(fd, CARD_DMA, NULL)), EFAULT);
	IS(card_dma(fd, gpu.fd, SLOTS, card.frame), 0);
	IS(card_dma(fd, gpu.fd, SLOTS, card.frame), EBUSY);
	IS(errno_of(read(fd, frame, card.frame)), EINVAL);
	close(fd);
	fd = card_open(0);
	IS(read(fd, &notice, sizeof(notice)), sizeof(notice));
	IS(card_dma(fd, gpu.fd, SLOTS, card.frame), EBUSY);
	close(fd);
	close(null);
	gpu_free(&gpu);
	free(frame);
}

static void fetch(void *to, unsigned long from, size_t size)
{
	int result = cuMemcpyDtoH_v2(to, from, size);

	if (result)
		IS(result, 0);
}

static bool is_mark(const uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != MARK)
			return false;
	return true;
}

/* Each frame is in its place, whole, and nothing else is written. */
static void test_dma(void)
{
	uint8_t *bytes = malloc(STRIDE);
	struct gpu gpu = gpu_new();
	bool whole = true, outside = false;
	int fd = card_open(0);
	uint32_t notice, number, least = 0;

	TRUE(STRIDE % GPU_PAGE_SIZE + card.frame > GPU_PAGE_SIZE);
	IS(card_dma(fd, gpu.fd, SLOTS, STRIDE), 0);
	for (uint32_t i = 0; i < 4 * SLOTS; i++) {
		IS(read(fd, &notice, sizeof(notice)), sizeof(notice));
		fetch(bytes, gpu.dev + i % SLOTS * STRIDE, STRIDE);
		number = card_number(*(uint64_t *)bytes);
		whole = whole && number >= least && is_frame((uint64_t *)bytes, number);
		outside = outside || !is_mark(bytes + card.frame, STRIDE - card.frame);
		least = number + 1;
	}
	TRUE(whole);
	close(fd);
	for (size_t at = SLOTS * STRIDE; at < gpu.size; at += STRIDE) {
		size_t n = gpu.size - at < STRIDE ? gpu.size - at : STRIDE;

		fetch(bytes, gpu.dev + at, n);
		outside = outside || !is_mark(bytes, n);
	}
	TRUE(!outside);
	gpu_free(&gpu);
	free(bytes);
}

/* After the close not one byte is written. */
static void test_close_ends_dma(void)
{
	struct gpu gpu = gpu_new();
	uint8_t *bytes = malloc(gpu.size);
	int fd = card_open(0);
	uint32_t notice;

	IS(card_dma(fd, gpu.fd, SLOTS, card.frame), 0);
	IS(read(fd, &notice, sizeof(notice)), sizeof(notice));
	close(fd);
	IS(cuMemsetD8_v2(gpu.dev, MARK, gpu.size), 0);
	periods(5 * SLOTS);
	fetch(bytes, gpu.dev, gpu.size);
	TRUE(is_mark(bytes, gpu.size));
	gpu_free(&gpu);
	free(bytes);
}

static struct nvidia_sim_stats stats(int sim)
{
	struct nvidia_sim_stats s = { .pages_total = 0 };

	IS(ioctl(sim, NVIDIA_SIM_STATS, &s), 0);
	return s;
}

/* The dma-buf keeps the memory, until the card is closed, after all else is gone. */
static void test_card_keeps_memory(void)
{
	int sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC), fd;
	uint64_t before = stats(sim).pages_free;
	struct gpu gpu = gpu_new();
	uint32_t notice;

	fd = card_open(0);
	IS(card_dma(fd, gpu.fd, SLOTS, card.frame), 0);
	IS(read(fd, &notice, sizeof(notice)), sizeof(notice));
	gpu_free(&gpu);
	IS(before - stats(sim).pages_free, gpu.size / GPU_PAGE_SIZE);
	for (int i = 0; i < SLOTS; i++)
		IS(read(fd, &notice, sizeof(notice)), sizeof(notice));
	close(fd);
	IS(stats(sim).pages_free, before);
	close(sim);
}

static int child_is_killed(void)
{
	struct gpu gpu;
	uint32_t notice;
	int fd;

	make_context();
	gpu = gpu_new();
	fd = card_open(0);
	if (!card_dma(fd, gpu.fd, SLOTS, card.frame) && read(fd, &notice, sizeof(notice)) == 4)
		kill(getpid(), SIGKILL);
	return 1;
}

/* Comes before CUDA is initialised here. */
static void test_killed(void)
{
	int sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC), status = 0, fd;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child_is_killed());
	IS(waitpid(pid, &status, 0), pid);
	TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	IS(stats(sim).pages_free, stats(sim).pages_total);
	IS(stats(sim).holders, 1);
	fd = card_open(0);
	TRUE(fd >= 0);
	close(fd);
	close(sim);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	test_one_program();
	test_read();
	test_mmap();
	test_lost();
	test_killed();
	make_context();
	test_dma_refuses();
	test_dma();
	test_close_ends_dma();
	test_card_keeps_memory();
	return tap_done(&tap);
}
