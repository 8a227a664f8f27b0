// SPDX-License-Identifier: MIT
/*
 * rm_test - tests the simulated nvidia.ko's requests for the rm backend: what they
 * refuse, and how long things live. It runs in the virtual machine; TAP output. The
 * answers must be those of tests/doubles/rm_uapi.h, as in the user-mode double.
 */
#include "../doubles/rm_selftest.h"
#include "nvidia_sim_uapi.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER(flags) ((long)(flags) << 32)

static int ioctl_errno(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) ? errno : 0;
}

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

static void test_sizes(void)
{
	static const unsigned int numbers[] = { 0x29, 0x2a, 0x2b, 0x34, 0x35, 0x4e, 0x4f, 210 };
	char arg[8192] = "";
	struct rm r;
	size_t i;

	rm_open(&r, 0);
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		IS(ioctl_errno(r.ctl, _IOC(3, 'F', numbers[i], 8), arg), EINVAL);
		IS(ioctl_errno(r.ctl, _IOC(3, 'F', numbers[i], 2608), arg), EINVAL);
	}
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 99, 16), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'G', 0x29, 16), arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_EXPORT_DMABUF, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_EXPORT_DMABUF_2600, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_MAP_MEMORY, arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_REGISTER_FD, arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_CARD_INFO(0), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', RM_CARD_INFO_NR, 73), arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_FREE, NULL), EFAULT);
	rm_close(&r);
}

static void test_parents(void)
{
	struct rm_device_params p = { .va_mode = 2 };
	struct rm_alloc a = { .class = RM_CLASS_DEVICE, .params = (uintptr_t)&p,
			      .params_size = sizeof(p) };
	struct rm_id_info id = { .gpu_id = 12345 };
	uint32_t mem;
	struct rm r;

	rm_open(&r, 0);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), RM_INVALID_ARGUMENT);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id) - 4), RM_INVALID_STRUCT);
	IS(rm_control(&r, 0x9999, &id, sizeof(id)), RM_NOT_SUPPORTED);
	a.root = r.client;
	a.parent = r.device;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_PARENT);
	a.parent = r.client;
	a.object = r.device;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_DUPLICATE_NAME);
	a.object = 0;
	a.params_size -= 4;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_STRUCT);
	a.params_size += 4;
	a.params = 8;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 100, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 1ull << 50, &mem), RM_NO_MEMORY);
	IS(rm_new_memory(&r, PAGE, &mem), 0);
	IS(rm_free(&r, r.device), 0);
	IS(rm_free(&r, mem), RM_NOT_FOUND);
	IS(rm_free(&r, r.client), 0);
	IS(rm_free(&r, r.client), RM_INVALID_CLIENT);
	rm_close(&r);
}

static void test_map(void)
{
	uint64_t lin, lin2;
	uint32_t mem;
	uint8_t *p, *q;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(rm_new_memory(&r, 48 * PAGE, &mem), 0);
	fd = gpu_open(r.minor);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(rm_map_on(&r, mem, 0, 49 * PAGE, fd, &lin), RM_INVALID_LIMIT);
	IS(rm_map_on(&r, mem, 48 * PAGE, PAGE, fd, &lin), RM_INVALID_LIMIT);
	IS(rm_map_on(&r, mem, -PAGE, 2 * PAGE, fd, &lin), RM_INVALID_LIMIT);
	IS(rm_map_on(&r, mem, 0, 0, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 100, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, r.ctl, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, STDOUT_FILENO, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, -1, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, r.device, 0, PAGE, fd, &lin), RM_INVALID_OBJECT);
	IS(rm_map_on(&r, mem, 15 * PAGE, 20 * PAGE, fd, &lin), ANSWER(RM_MAP_BAR1));
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), RM_STATE_IN_USE);
	TRUE(mmap(NULL, 21 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ENXIO);
	TRUE(mmap(NULL, 19 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ENXIO);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)PAGE) == MAP_FAILED);
	IS(errno, EINVAL);
	TRUE(mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	IS(errno, EAGAIN);
	p = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	close(fd);
	q = rm_map(&r, mem, 0, 48 * PAGE, &lin2);
	TRUE(q && lin2 != lin);
	p[0] = 7;
	p[PAGE + 3] = 8;
	p[20 * PAGE - 1] = 9;
	IS(q[15 * PAGE], 7);
	IS(q[16 * PAGE + 3], 8);
	IS(q[35 * PAGE - 1], 9);
	IS(rm_stats(&r).bar_used, 68 * PAGE);
	IS(munmap(p, 10 * PAGE), 0);
	IS(p[20 * PAGE - 1], 9);
	IS(rm_unmap(&r, mem, lin + 1), RM_NOT_FOUND);
	IS(rm_unmap(&r, mem, lin), 0);
	IS(rm_unmap(&r, mem, lin), RM_NOT_FOUND);
	/* The mapping reads zeros from now on, without a fault. */
	IS(p[20 * PAGE - 1], 0);
	IS(q[35 * PAGE - 1], 9);
	IS(rm_free(&r, mem), 0);
	IS(q[35 * PAGE - 1], 0);
	IS(rm_unmap(&r, mem, lin2), RM_NOT_FOUND);
	IS(rm_stats(&r).bar_used, 0);
	IS(rm_stats(&r).used, 0);
	munmap(p + 10 * PAGE, 10 * PAGE);
	munmap(q, 48 * PAGE);
	rm_close(&r);
}

struct shared {
	struct rm *rm;
	uint32_t memory;
	int fd;
};

static int child_asks(void *arg)
{
	const struct shared *s = arg;
	uint32_t copy;
	struct rm r;

	if (rm_free(s->rm, s->memory) != RM_INVALID_CLIENT)
		return 1;
	rm_open(&r, 0);
	if (rm_dup(&r, s->rm->client, s->memory, &copy) != RM_NO_PERMISSION)
		return 2;
	return 0;
}

static int child_imports(void *arg)
{
	const struct shared *s = arg;
	struct rm_import_fd im = { .fd = s->fd, .type = RM_FD_OBJECT };
	uint64_t lin;
	uint8_t *p;
	struct rm r;

	rm_open(&r, 0);
	im.device = im.parent = r.device;
	if (rm_control(&r, RM_CTRL_IMPORT_FD, &im, sizeof(im)))
		return 100;
	p = rm_map(&r, im.object, 0, PAGE, &lin);
	return p ? p[1] : 101;
}

static void test_dup(void)
{
	struct rm_export_fd ex = { .type = RM_FD_OBJECT };
	struct rm a, b;
	struct shared s = { .rm = &a };
	uint32_t mem, copy, again;
	uint64_t lin;
	uint8_t *p;

	rm_open(&a, 0);
	rm_open(&b, 0);
	IS(rm_new_memory(&a, 4 * PAGE, &mem), 0);
	s.memory = mem;
	IS(in_child(child_asks, &s), 0);
	IS(rm_dup(&b, 0x1234, mem, &again), RM_INVALID_CLIENT);
	IS(rm_dup(&b, a.client, 0x1234, &again), RM_NOT_FOUND);
	IS(rm_dup(&b, a.client, a.device, &again), RM_INVALID_OBJECT);
	IS(rm_dup(&b, a.client, mem, &copy), 0);
	p = rm_map(&b, copy, 0, PAGE, &lin);
	TRUE(p);
	p[1] = 9;
	ex.device = ex.parent = a.device;
	ex.object = mem;
	ex.fd = s.fd = ctl_open();
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), 0);
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_STATE_IN_USE);
	/* The memory lives as long as a duplicate or a file of it. */
	IS(rm_free(&a, mem), 0);
	IS(p[1], 9);
	IS(in_child(child_imports, &s), 9);
	IS(rm_free(&b, copy), 0);
	IS(p[1], 0);
	TRUE(rm_stats(&a).used > 0);
	IS(in_child(child_imports, &s), 9);
	close(s.fd);
	IS(rm_stats(&a).used, 0);
	munmap(p, PAGE);
	rm_close(&b);
	rm_close(&a);
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
	IS(ioctl(r.gpu_fd, RM_EXPORT_DMABUF, &a), 0);
	IS(a.status, 0);
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
	IS(ioctl(r.gpu_fd, RM_EXPORT_DMABUF, &a), 0);
	IS(a.status, RM_NOT_FOUND);
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

/* All of a client ends with the last copy of its file, however that copy is closed. */
static int child_dies(void *arg)
{
	uint32_t mem;
	uint64_t lin;
	struct rm r;

	(void)arg;
	rm_open(&r, 0);
	if (!rm_new_memory(&r, 4 * PAGE, &mem) && rm_map(&r, mem, 0, PAGE, &lin))
		kill(getpid(), SIGKILL);
	return 1;
}

static void test_life(void)
{
	struct rm r, watcher;
	uint32_t mem;

	rm_open(&watcher, 0);
	rm_open(&r, 0);
	IS(rm_new_memory(&r, 4 * PAGE, &mem), 0);
	IS(rm_stats(&watcher).clients, 2);
	rm_close(&r);
	IS(rm_stats(&watcher).clients, 1);
	IS(in_child(child_dies, NULL), -SIGKILL);
	IS(rm_stats(&watcher).clients, 1);
	IS(rm_stats(&watcher).mappings, 0);
	IS(rm_stats(&watcher).bar_used, 0);
	IS(rm_stats(&watcher).used, 0);
	IS(rm_stats(&watcher).files, 2);
	rm_close(&watcher);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	test_sizes();
	test_parents();
	test_map();
	test_dup();
	test_suspend();
	test_export_fd();
	test_export_mmap();
	test_life();
	return tap_end();
}
