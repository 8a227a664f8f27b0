// SPDX-License-Identifier: MIT
/*
 * Self-tests that both simulated drivers pass: nvrm, run by rm_sim, and the nvidia.ko of
 * tests/kmod. One GPU is enough. Memory is of whole GPU pages, 16 of the CPU's, where its size
 * is looked at.
 */
#include "rm_selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The request has the size, and each request is for one kind of file. */
static void test_sizes(void)
{
	static const unsigned int numbers[] = { 0x29, 0x2a, 0x2b, 0x34, 0x35, 0x4e, 0x4f, 201, 210 };
	static const unsigned int sizes[] = { 8, 12, 32, 40, 48, 2608 };
	static const unsigned long right[] = {
		RM_FREE, RM_CONTROL, RM_ALLOC, RM_DUP_OBJECT, RM_SHARE, RM_MAP_MEMORY, RM_UNMAP_MEMORY, RM_REGISTER_FD, RM_VERSION,
	};
	char arg[8192] = "";
	struct rm r;

	rm_open(&r, 0);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
			if (_IOC(3, 'F', numbers[i], sizes[k]) != right[i])
				IS(ioctl_errno(r.ctl, _IOC(3, 'F', numbers[i], sizes[k]), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 99, 16), arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_EXPORT_DMABUF, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_EXPORT_DMABUF_2600, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_ALLOC, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_MAP_MEMORY, arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_REGISTER_FD, arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_CARD_INFO(0), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', RM_CARD_INFO_NR, 73), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', RM_CARD_INFO_NR, 32 * 72 + 8), arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_CARD_INFO(4), arg), 0);
	IS(ioctl_errno(r.ctl, RM_FREE, NULL), EFAULT);
	rm_close(&r);
}

static void test_version(void)
{
	struct rm_version v = { .cmd = '2' };
	int ctl = ctl_open();

	IS(ioctl(ctl, RM_VERSION, &v), 0);
	IS(v.reply, 1);
	v.cmd = 0;
	IS(ioctl(ctl, RM_VERSION, &v), 0);
	v.version[0]++;
	IS(ioctl_errno(ctl, RM_VERSION, &v), EINVAL);
	close(ctl);
}

static void test_clients(void)
{
	struct rm_alloc a = { .class = RM_CLASS_CLIENT, .root = 1 };
	struct rm_free f = { .root = 0 };
	struct rm r, other;
	uint32_t object;

	rm_open(&r, 0);
	rm_open(&other, 0);
	TRUE(r.client != other.client);
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), RM_INVALID_ARGUMENT);
	a = (struct rm_alloc){ .class = 0x1234, .root = r.client, .parent = r.client };
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), RM_INVALID_CLASS);
	/* A client belongs to its file. */
	f.root = f.object = other.client;
	IS(rm_call(r.ctl, RM_FREE, &f, &f.status), RM_INVALID_CLIENT);
	IS(rm_free(&r, 0xcafe), RM_NOT_FOUND);
	IS(rm_new_memory(&r, PAGE, &object), 0);
	IS(rm_free(&r, r.device), 0);
	IS(rm_free(&r, object), RM_NOT_FOUND);
	IS(rm_free(&r, r.client), 0);
	IS(rm_free(&r, r.client), RM_INVALID_CLIENT);
	rm_close(&other);
	rm_close(&r);
}

static void test_devices(void)
{
	struct rm_device_params p = { .va_mode = 2 };
	struct rm_alloc a = { .class = RM_CLASS_DEVICE, .params = (uintptr_t)&p };
	struct rm_id_info id = { .gpu_id = 12345 };
	struct rm_register_fd reg;
	uint32_t device;
	struct rm r;

	rm_open(&r, 0);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), RM_INVALID_ARGUMENT);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id) - 4), RM_INVALID_ARGUMENT);
	IS(rm_control(&r, 0x9999, &id, sizeof(id)), RM_NOT_SUPPORTED);
	p.instance = r.instance;
	a.root = r.client;
	a.parent = r.client;
	a.params_size = sizeof(p) - 4;
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), RM_INVALID_STRUCT);
	a.params_size = sizeof(p);
	a.params = 8;
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), RM_INVALID_ARGUMENT);
	a.params = (uintptr_t)&p;
	a.parent = r.device;
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), RM_INVALID_PARENT);
	a.parent = r.client;
	a.object = r.device;
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), RM_DUPLICATE_NAME);
	IS(rm_new_device(&r, 77, &device), RM_INVALID_DEVICE);
	reg.ctl_fd = r.ctl;
	IS(ioctl_errno(r.gpu_fd, RM_REGISTER_FD, &reg), EINVAL);
	rm_close(&r);
}

static void test_map(void)
{
	uint64_t lin, lin2;
	uint32_t mem, copy;
	struct rm r;
	uint8_t *p, *q;
	int fd;

	rm_open(&r, 0);
	IS(rm_new_memory(&r, 100, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 0, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 1ull << 50, &mem), RM_NO_MEMORY);
	IS(rm_new_memory(&r, 16 * PAGE, &mem), 0);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, 17 * PAGE, fd, &lin), RM_INVALID_LIMIT);
	IS(rm_map_on(&r, mem, 16 * PAGE, PAGE, fd, &lin), RM_INVALID_BASE);
	IS(rm_map_on(&r, mem, -PAGE, 2 * PAGE, fd, &lin), RM_INVALID_BASE);
	IS(rm_map_on(&r, mem, 0, 0, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 100, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, r.ctl, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, STDOUT_FILENO, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, -1, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, 0x77, 0, PAGE, fd, &lin), RM_NOT_FOUND);
	IS(rm_map_on(&r, r.device, 0, PAGE, fd, &lin), RM_INVALID_OBJECT);
	IS(rm_map_on(&r, mem, PAGE, 2 * PAGE, fd, &lin), ANSWER(RM_MAP_BAR1));
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), RM_STATE_IN_USE);
	TRUE(mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ENXIO);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)PAGE) == MAP_FAILED);
	IS(errno, EINVAL);
	p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	close(fd);
	/* It is the same memory at another address. */
	q = rm_map(&r, mem, 0, 16 * PAGE, &lin2);
	TRUE(q && lin2 != lin);
	p[5] = 7;
	IS(q[PAGE + 5], 7);
	IS(rm_stats(&r).bar_used, 18 * PAGE);
	IS(rm_stats(&r).mappings, 2);
	munmap(p, 2 * PAGE);
	munmap(q, 16 * PAGE);
	IS(rm_unmap(&r, mem, lin + 1), RM_NOT_FOUND);
	IS(rm_unmap(&r, mem, lin), 0);
	IS(rm_unmap(&r, mem, lin), RM_NOT_FOUND);
	/* A file that was prepared for a mapping that has ended. */
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin), ANSWER(RM_MAP_BAR1));
	IS(rm_unmap(&r, mem, lin), 0);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	close(fd);
	IS(rm_unmap(&r, mem, lin2), 0);
	/* FREE comes first. Then the mapping reads zeros, and UNMAP finds nothing. */
	IS(rm_dup(&r, r.client, mem, &copy), 0);
	p = rm_map(&r, copy, PAGE, 2 * PAGE, &lin);
	q = rm_map(&r, mem, 0, 16 * PAGE, &lin2);
	TRUE(p && q && p[5] == 7);
	IS(rm_free(&r, copy), 0);
	IS(p[5], 0);
	p[5] = 8;
	IS(q[PAGE + 5], 7);
	IS(rm_unmap(&r, copy, lin), RM_NOT_FOUND);
	munmap(p, 2 * PAGE);
	munmap(q, 16 * PAGE);
	IS(rm_free(&r, mem), 0);
	IS(rm_unmap(&r, mem, lin2), RM_NOT_FOUND);
	/* All of a client's objects at once. */
	IS(rm_new_memory(&r, 16 * PAGE, &mem), 0);
	p = rm_map(&r, mem, 0, PAGE, &lin);
	q = rm_map(&r, mem, PAGE, PAGE, &lin2);
	p[0] = q[0] = 3;
	IS(rm_free(&r, r.client), 0);
	IS(p[0] + q[0], 0);
	munmap(p, PAGE);
	munmap(q, PAGE);
	IS(rm_stats(&r).bar_used, 0);
	IS(rm_stats(&r).used, 0);
	rm_close(&r);
}

struct shared {
	struct rm *rm;
	uint32_t memory;
	int fd;
};

static int child_requests(void *arg)
{
	const struct shared *s = arg;
	uint32_t copy;
	struct rm r;

	/* The child uses the parent's client, on its file. */
	if (rm_free(s->rm, s->memory) != RM_INVALID_CLIENT)
		return 1;
	/* The child has a client of its own, and the parent's memory. */
	rm_open(&r, 0);
	if (rm_dup(&r, s->rm->client, s->memory, &copy) != RM_NO_PERMISSION)
		return 2;
	rm_close(&r);
	return 0;
}

static int child_shared(void *arg)
{
	const struct shared *s = arg;
	struct rm_import_fd im = { .fd = s->fd, .type = RM_FD_OBJECT };
	uint64_t lin;
	uint8_t *p;
	struct rm r;

	rm_open(&r, 0);
	if (s->fd < 0 && rm_dup(&r, s->rm->client, s->memory, &im.object))
		return 1;
	im.device = im.parent = r.device;
	if (s->fd >= 0 && rm_control(&r, RM_CTRL_IMPORT_FD, &im, sizeof(im)))
		return 2;
	p = rm_map(&r, im.object, 0, PAGE, &lin);
	if (!p)
		return 3;
	return p[0]++;
}

static void test_dup(void)
{
	struct rm a, b;
	struct shared s = { .rm = &a, .fd = -1 };
	struct rm_share share = { .client = 0 };
	uint64_t lin;
	uint32_t mem, copy, again;
	uint8_t *p;

	rm_open(&a, 0);
	rm_open(&b, 0);
	IS(rm_new_memory(&a, 16 * PAGE, &mem), 0);
	/* Handles are local to a client. */
	IS(rm_new_memory(&b, PAGE, &copy), 0);
	IS(copy, mem);
	IS(rm_free(&b, copy), 0);
	IS(rm_dup(&b, a.client, mem, &copy), 0);
	IS(rm_dup(&b, b.client, copy, &again), 0);
	IS(rm_free(&b, again), 0);
	IS(rm_dup(&b, 0x1234, mem, &again), RM_INVALID_CLIENT);
	IS(rm_dup(&b, a.client, 0x1234, &again), RM_NOT_FOUND);
	IS(rm_dup(&b, a.client, a.device, &again), RM_INVALID_OBJECT);
	/* gdr_open asks so whether the request passes. */
	IS(rm_dup(&b, b.client, 0, &again), RM_NOT_FOUND);
	/* The memory lives as long as a duplicate of it. */
	p = rm_map(&b, copy, PAGE, PAGE, &lin);
	TRUE(p);
	p[1] = 9;
	IS(rm_free(&a, mem), 0);
	IS(rm_stats(&a).used, 16 * PAGE);
	munmap(p, PAGE);
	IS(rm_unmap(&b, copy, lin), 0);
	p = rm_map(&b, copy, 0, 4 * PAGE, &lin);
	TRUE(p && p[PAGE + 1] == 9);
	munmap(p, 4 * PAGE);
	IS(rm_unmap(&b, copy, lin), 0);
	IS(rm_free(&b, copy), 0);
	IS(rm_stats(&a).used, 0);
	/* Another process. */
	IS(rm_new_memory(&a, 16 * PAGE, &s.memory), 0);
	IS(in_child(child_requests, &s), 0);
	share.client = a.client;
	share.object = s.memory;
	IS(rm_call(a.ctl, RM_SHARE, &share, &share.status), 0);
	IS(in_child(child_shared, &s), 0);
	p = rm_map(&a, s.memory, 0, PAGE, &lin);
	TRUE(p && p[0] == 1);
	munmap(p, PAGE);
	rm_close(&b);
	rm_close(&a);
}

static void test_fds(void)
{
	struct shared s = { .rm = NULL };
	struct rm a;
	struct rm_export_fd ex = { .type = RM_FD_OBJECT };
	struct rm_import_fd im = { .type = RM_FD_OBJECT };
	uint32_t mem;

	rm_open(&a, 0);
	IS(rm_new_memory(&a, 16 * PAGE, &mem), 0);
	ex.device = ex.parent = a.device;
	ex.object = mem;
	ex.fd = a.ctl;
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_STATE_IN_USE);
	ex.fd = a.gpu_fd;
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_INVALID_PARAMETER);
	ex.fd = im.fd = s.fd = ctl_open();
	im.device = im.parent = a.device;
	IS(rm_control(&a, RM_CTRL_IMPORT_FD, &im, sizeof(im)), RM_INVALID_PARAMETER);
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), 0);
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_STATE_IN_USE);
	IS(rm_free(&a, mem), 0);
	IS(rm_stats(&a).used, 16 * PAGE);
	IS(rm_control(&a, RM_CTRL_IMPORT_FD, &im, sizeof(im)), 0);
	TRUE(im.object);
	IS(in_child(child_shared, &s), 0);
	IS(in_child(child_shared, &s), 1);
	rm_close(&a);
	rm_open(&a, 0);
	IS(rm_stats(&a).used, 16 * PAGE);
	close(s.fd);
	IS(rm_stats(&a).used, 0);
	rm_close(&a);
}

/* All of a client ends with the last copy of its file. */
static int child_copy(void *arg)
{
	int *pipe = arg;
	char byte;

	close(pipe[1]);
	return read(pipe[0], &byte, 1) == 0 ? 0 : 1;
}

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
	struct rm a, watcher;
	uint32_t mem;
	int ends[2], copy, status;
	pid_t pid;

	rm_open(&watcher, 0);
	rm_open(&a, 0);
	IS(rm_new_memory(&a, 4 * PAGE, &mem), 0);
	copy = fcntl(a.ctl, F_DUPFD_CLOEXEC, 0);
	close(a.ctl);
	IS(rm_stats(&watcher).clients, 2);
	a.ctl = copy;
	IS(rm_free(&a, mem), 0);
	close(copy);
	IS(rm_stats(&watcher).clients, 1);
	close(a.gpu_fd);
	/* A forked child has a copy as well. */
	rm_open(&a, 0);
	IS(pipe(ends), 0);
	pid = fork();
	if (!pid)
		_exit(child_copy(ends));
	rm_close(&a);
	IS(rm_stats(&watcher).clients, 2);
	close(ends[1]);
	IS(waitpid(pid, &status, 0), pid);
	IS(status, 0);
	close(ends[0]);
	IS(rm_stats(&watcher).clients, 1);
	IS(in_child(child_dies, NULL), -SIGKILL);
	IS(rm_stats(&watcher).clients, 1);
	IS(rm_stats(&watcher).mappings, 0);
	IS(rm_stats(&watcher).bar_used, 0);
	IS(rm_stats(&watcher).used, 0);
	IS(rm_stats(&watcher).files, 2);
	rm_close(&watcher);
}

/* A rule that the program makes itself. */
static void test_fail(void)
{
	struct rm_sim_fail f = { .name = "FREE", .result = RM_NOT_SUPPORTED, .nth = 2 };
	uint32_t mem;
	struct rm r;

	rm_open(&r, 0);
	IS(ioctl(r.ctl, RM_SIM_FAIL, &f), 0);
	IS(rm_new_memory(&r, PAGE, &mem), 0);
	IS(rm_free(&r, 0x1234), RM_NOT_FOUND);
	IS(rm_free(&r, mem), RM_NOT_SUPPORTED);
	IS(rm_free(&r, mem), 0);
	f.result = 0;
	IS(ioctl(r.ctl, RM_SIM_FAIL, &f), 0);
	strcpy(f.name, "REE");
	IS(ioctl_errno(r.ctl, RM_SIM_FAIL, &f), EINVAL);
	rm_close(&r);
}

void test_rm_both(void)
{
	test_sizes();
	test_version();
	test_clients();
	test_devices();
	test_map();
	test_dup();
	test_fds();
	test_life();
	test_fail();
}
