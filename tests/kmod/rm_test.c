// SPDX-License-Identifier: MIT
/*
 * rm_test - tests the simulated nvidia.ko's requests for the rm backend: those that the
 * user-mode double passes, too, and what a kernel alone has. It runs in the virtual
 * machine; TAP output. The answers must be those of tests/doubles/rm_uapi.h.
 */
#include "../doubles/rm_selftest.h"
#include "nvidia_sim_uapi.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The other half of the simulated driver. */
static int sim_open(void)
{
	int fd = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);

	TRUE(fd >= 0);
	return fd;
}

static void set_knob(int sim, unsigned int knob, unsigned int value)
{
	struct nvidia_sim_set s = { .knob = knob, .value = value };

	IS(ioctl(sim, NVIDIA_SIM_SET, &s), 0);
}

static uint64_t holders(int sim)
{
	struct nvidia_sim_stats s;

	IS(ioctl(sim, NVIDIA_SIM_STATS, &s), 0);
	return s.holders;
}

/* Pages of the CPU's in GPU pages that are no neighbours. */
static void test_map(void)
{
	uint64_t lin, lin2;
	uint32_t mem;
	uint8_t *p, *q;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(ioctl_errno(r.ctl, _IOC(3, 'G', 0x29, 16), &lin), EINVAL);
	IS(rm_new_memory(&r, 48 * PAGE, &mem), 0);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 15 * PAGE, 20 * PAGE, fd, &lin), ANSWER(RM_MAP_BAR1));
	TRUE(mmap(NULL, 19 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ENXIO);
	TRUE(mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	IS(errno, EAGAIN);
	p = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	close(fd);
	q = rm_map(&r, mem, 0, 48 * PAGE, &lin2);
	TRUE(q);
	p[0] = 7;
	p[PAGE + 3] = 8;
	p[20 * PAGE - 1] = 9;
	IS(q[15 * PAGE], 7);
	IS(q[16 * PAGE + 3], 8);
	IS(q[35 * PAGE - 1], 9);
	IS(munmap(p, 10 * PAGE), 0);
	IS(p[20 * PAGE - 1], 9);
	IS(rm_unmap(&r, mem, lin), 0);
	/* The mapping reads zeros from now on, without a fault. */
	IS(p[20 * PAGE - 1], 0);
	IS(q[35 * PAGE - 1], 9);
	IS(rm_free(&r, mem), 0);
	IS(q[35 * PAGE - 1], 0);
	munmap(p + 10 * PAGE, 10 * PAGE);
	munmap(q, 48 * PAGE);
	rm_close(&r);
}

struct reader {
	const volatile uint8_t *at;
	int value;
};

static void *thread_reads(void *arg)
{
	struct reader *r = arg;

	r->value = *r->at;
	return NULL;
}

/* While the GPU is suspended an access waits. Then all is there again. */
static void test_suspend(void)
{
	struct reader reader;
	uint64_t lin;
	pthread_t id;
	uint32_t mem;
	int sim = sim_open();
	struct rm r;
	uint8_t *p;

	rm_open(&r, 0);
	IS(rm_new_memory(&r, 32 * PAGE, &mem), 0);
	p = rm_map(&r, mem, 0, 32 * PAGE, &lin);
	TRUE(p);
	p[0] = 5;
	p[32 * PAGE - 1] = 6;
	set_knob(sim, NVIDIA_SIM_ASLEEP, 1);
	reader = (struct reader){ .at = p + 32 * PAGE - 1, .value = -1 };
	IS(pthread_create(&id, NULL, thread_reads, &reader), 0);
	usleep(50000);
	IS(reader.value, -1);
	set_knob(sim, NVIDIA_SIM_ASLEEP, 0);
	IS(pthread_join(id, NULL), 0);
	IS(reader.value, 6);
	IS(p[0], 5);
	munmap(p, 32 * PAGE);
	rm_close(&r);
	close(sim);
}

static void test_export_fd(void)
{
	struct nvidia_sim_attach at = { 0 };
	int sim = sim_open();
	uint64_t before;
	struct rm_dmabuf a = { .fd = -1, .total_objects = 1, .objects = 1,
			       .total_size = PAGE, .offsets = { PAGE }, .sizes = { PAGE } };
	uint32_t mem, zero = 0;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(rm_new_memory(&r, 4 * PAGE, &mem), 0);
	a.client = r.client;
	a.handles[0] = mem;
	before = holders(sim);
	IS(rm_call(r.gpu_fd, RM_EXPORT_DMABUF, &a, &a.status), 0);
	TRUE(a.fd >= 0);
	fd = a.fd;
	/* It holds the GPU open. An importer that knows no peer-to-peer cannot attach. */
	IS(holders(sim), before + 1);
	at.fd = fd;
	IS(ioctl_errno(sim, NVIDIA_SIM_ATTACH, &at), 524);
	at.peer2peer = 1;
	IS(ioctl_errno(sim, NVIDIA_SIM_ATTACH, &at), 0);
	/* It is a dma-buf of the kernel's. This driver's cannot be mapped. */
	IS(ioctl_errno(fd, RM_SIM_HOLDS, &zero), ENOTTY);
	IS(lseek(fd, 0, SEEK_END), PAGE);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, 524);
	IS(rm_free(&r, mem), 0);
	TRUE(rm_stats(&r).used > 0);
	close(fd);
	IS(rm_stats(&r).used, 0);
	IS(holders(sim), before);
	close(sim);
	a.fd = -1;
	IS(rm_call(r.gpu_fd, RM_EXPORT_DMABUF, &a, &a.status), RM_NOT_FOUND);
	IS(a.fd, -1);
	rm_close(&r);
}

/* Since 610 the caller may ask for a dma-buf that mmap maps. */
static void test_export_mmap(void)
{
	struct rm_dmabuf a = { .fd = -1, .total_objects = 1, .objects = 1, .allow_mmap = 1,
			       .total_size = 20 * PAGE, .offsets = { PAGE },
			       .sizes = { 20 * PAGE } };
	struct rm_version v = { .cmd = '2' };
	uint32_t mem;
	uint8_t *p, *q;
	uint64_t lin;
	struct rm r;

	rm_open(&r, 0);
	IS(ioctl(r.ctl, RM_VERSION, &v), 0);
	IS(rm_new_memory(&r, 32 * PAGE, &mem), 0);
	a.client = r.client;
	a.handles[0] = mem;
	IS(ioctl(r.gpu_fd, RM_EXPORT_DMABUF, &a), 0);
	if (atoi(v.version) < 610) {
		IS(a.status, RM_NOT_SUPPORTED);
		rm_close(&r);
		return;
	}
	IS(a.status, 0);
	TRUE(mmap(NULL, 21 * PAGE, PROT_READ, MAP_SHARED, a.fd, 0) == MAP_FAILED);
	IS(errno, EINVAL);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, a.fd, 20 * (off_t)PAGE) == MAP_FAILED);
	IS(errno, EINVAL);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 19 * (off_t)PAGE);
	TRUE(p != MAP_FAILED);
	q = rm_map(&r, mem, 0, 32 * PAGE, &lin);
	TRUE(q);
	q[20 * PAGE + 7] = 9;
	IS(p[7], 9);
	/* The mapping keeps the memory. */
	close(a.fd);
	IS(rm_free(&r, mem), 0);
	IS(p[7], 9);
	munmap(p, PAGE);
	munmap(q, 32 * PAGE);
	IS(rm_stats(&r).used, 0);
	rm_close(&r);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	test_rm_both();
	test_map();
	test_suspend();
	test_export_fd();
	test_export_mmap();
	return tap_end();
}
