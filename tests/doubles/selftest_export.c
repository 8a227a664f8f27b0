// SPDX-License-Identifier: MIT
/* Self-tests of the simulated libcuda: dma-bufs, and what a CPU mapping sees. */
#include "selftest.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static int export(int *fd, cu_ptr p, size_t size)
{
	return cuMemGetHandleForAddressRange(fd, p, size, 1, 0);
}

static uint8_t *map(int fd, size_t size)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static uint8_t byte_at(cu_ptr p)
{
	uint8_t c = 0;

	IS(cuMemcpyDtoH_v2(&c, p, 1), 0);
	return c;
}

/* Whether memory is the simulated driver's, and not in memfds. */
static bool on_driver(void)
{
	return getenv("CUDA_SIM_RM");
}

/* Only the result of an export. */
static int export_closed(cu_ptr p, size_t size)
{
	int fd, result = export(&fd, p, size);

	if (!result)
		close(fd);
	return result;
}

static void test_arguments(void)
{
	struct vmm v = vmm_make(0, 2 * MIB, 0);
	cu_ptr p;
	int fd;

	IS(cuMemAlloc_v2(&p, MIB + 100), 0);
	IS(cuMemGetHandleForAddressRange(NULL, p, PAGE, 1, 0), 1);
	IS(cuMemGetHandleForAddressRange(&fd, p, PAGE, 2, 0), 1);
	IS(cuMemGetHandleForAddressRange(&fd, p, PAGE, 1, 2), 1);
	IS(export(&fd, p + 1, PAGE), 1);
	IS(export(&fd, p, PAGE - 1), 1);
	IS(export(&fd, p, 0), 1);
	/* Past the buffer, and past the object that it is in. */
	IS(export_closed(p, MIB + 2 * PAGE), 0);
	IS(export(&fd, p, 2 * MIB), 1);
	IS(export(&fd, p, -PAGE), 1);
	IS(export(&fd, (uintptr_t)&fd & -PAGE, PAGE), 1);
	/*
	 * The buffer ends in the middle of the last page. The page is still the buffer's.
	 */
	IS(export(&fd, p, MIB + PAGE), 0);
	IS(fcntl(fd, F_GETFD), 0);
	close(fd);
	IS(cuMemGetHandleForAddressRange(&fd, v.addr, 2 * MIB, 1, 1), 0);
	close(fd);
	IS(cuMemFree_v2(p), 0);
	IS(export(&fd, p, PAGE), 1);
	vmm_free(&v);
	IS(export(&fd, v.addr, PAGE), 1);
}

/* Ranges from the start and from the middle, shared ranges, and ranges after their end. */
static void test_carve(void)
{
	uint8_t *a, *b, *c;
	int fd[3], err, refused = on_driver() ? 0 : 999;
	cu_ptr p;

	IS(cuMemAlloc_v2(&p, MIB), 0);
	IS(cuMemsetD8_v2(p, 1, MIB), 0);
	IS(export(&fd[0], p, 4 * PAGE), 0);
	IS(export(&fd[1], p + 4 * PAGE, 4 * PAGE), 0);
	IS(export(&fd[2], p + 4 * PAGE, 2 * PAGE), 0);
	a = map(fd[0], 4 * PAGE);
	b = map(fd[1], 4 * PAGE);
	c = map(fd[2], 2 * PAGE);
	IS(b[0], 1);
	a[3] = 11;
	b[3] = 12;
	IS(c[3], 12);
	c[4] = 13;
	IS(byte_at(p + 3), 11);
	IS(byte_at(p + 4 * PAGE + 3), 12);
	IS(byte_at(p + 4 * PAGE + 4), 13);
	IS(cuMemsetD8_v2(p + 4 * PAGE - 1, 9, 2), 0);
	IS(a[4 * PAGE - 1], 9);
	IS(b[0], 9);
	/*
	 * A range that overlaps one with another start has no memfd. A driver can export
	 * it.
	 */
	fflush(stderr);
	err = dup(STDERR_FILENO);
	if (!freopen("/dev/null", "w", stderr))
		abort();
	IS(export_closed(p + 2 * PAGE, PAGE), refused);
	IS(export_closed(p + 5 * PAGE, PAGE), refused);
	IS(export_closed(p, 8 * PAGE), refused);
	close(fd[0]);
	IS(export_closed(p + 2 * PAGE, PAGE), refused);
	munmap(a, 4 * PAGE);
	IS(export(&fd[0], p + 2 * PAGE, PAGE), 0);
	close(fd[0]);
	close(fd[1]);
	munmap(b, 4 * PAGE);
	close(fd[2]);
	IS(export_closed(p + 5 * PAGE, PAGE), refused);
	fflush(stderr);
	dup2(err, STDERR_FILENO);
	close(err);
	munmap(c, 2 * PAGE);
	IS(export(&fd[0], p + 5 * PAGE, PAGE), 0);
	close(fd[0]);
	IS(byte_at(p + 4 * PAGE + 4), 13);
	/* All of it from its start once more. */
	IS(export(&fd[0], p, MIB), 0);
	a = map(fd[0], MIB);
	IS(a[4 * PAGE + 4], 13);
	IS(a[3], 11);
	/* The memory outlives the buffer. */
	IS(cuMemFree_v2(p), 0);
	IS(cuda_sim_live(), 1);
	close(fd[0]);
	IS(a[4 * PAGE + 4], 13);
	munmap(a, MIB);
}

/* Buffers that share a chunk, and pages. */
static void test_chunk(void)
{
	cu_ptr p[3];
	uint8_t *m;
	int i, fd;

	for (i = 0; i < 3; i++)
		IS(cuMemAlloc_v2(&p[i], 3000), 0);
	TRUE(p[1] % PAGE != 0);
	IS(export(&fd, p[1] & -PAGE, 2 * PAGE), 0);
	m = map(fd, 2 * PAGE);
	m[p[1] % PAGE] = 42;
	IS(byte_at(p[1]), 42);
	munmap(m, 2 * PAGE);
	close(fd);
	for (i = 0; i < 3; i++)
		IS(cuMemFree_v2(p[i]), 0);
}

/* A page whose first bytes are free, although a buffer has others of it. */
static void test_free_space(void)
{
	cu_ptr p[16];
	size_t i, first = 0;

	for (i = 0; i < 16; i++)
		IS(cuMemAlloc_v2(&p[i], 512), 0);
	while (first < 15 && p[first] % PAGE)
		first++;
	IS(p[first + 1] / PAGE, p[first] / PAGE);
	IS(export_closed(p[first], PAGE), 0);
	IS(cuMemFree_v2(p[first]), 0);
	IS(export_closed(p[first], PAGE), 1);
	for (i = 0; i < 16; i++)
		if (i != first)
			IS(cuMemFree_v2(p[i]), 0);
}

/* A copy that has not landed, and the attribute that makes it land. */
static void test_sync_memops(void)
{
	uint8_t *m, host[2] = { 7, 8 };
	static uint8_t big[65537];
	int fd, on = 1;
	cu_ptr p;

	IS(cuMemAlloc_v2(&p, MIB), 0);
	IS(export(&fd, p, MIB), 0);
	m = map(fd, MIB);
	IS(cuMemcpyHtoD_v2(p, host, 1), 0);
	host[0] = 0;
	IS(m[0], 0);
	IS(cuCtxSynchronize(), 0);
	IS(m[0], 7);
	IS(cuMemcpyHtoDAsync_v2(p, big, sizeof(big), NULL), 0);
	IS(m[0], 7);
	IS(cuStreamSynchronize(NULL), 0);
	IS(m[0], 0);
	IS(cuMemcpyHtoD_v2(p + MIB - 1, host + 1, 1), 0);
	IS(cuMemcpyHtoD_v2(p, big, sizeof(big)), 0);
	IS(m[MIB - 1], 8);
	IS(cuMemcpyHtoD_v2(p, host + 1, 1), 0);
	IS(m[0], 0);
	IS(cuPointerSetAttribute(&on, 6, p), 0);
	IS(m[0], 8);
	IS(cuMemcpyHtoD_v2(p + 1, host + 1, 1), 0);
	IS(m[1], 8);
	munmap(m, MIB);
	close(fd);
	IS(cuMemFree_v2(p), 0);
}

/* The same of a copy within the device, which either side's attribute makes land. */
static void test_device_copies(void)
{
	cu_ptr p[2];
	uint8_t *m;
	int fd;

	IS(cuMemAlloc_v2(&p[0], MIB), 0);
	IS(cuMemAlloc_v2(&p[1], MIB), 0);
	IS(export(&fd, p[0], MIB), 0);
	m = map(fd, MIB);
	for (int i = 0; i < 3; i++) {
		int on = i > 0, off = 0;
		cu_ptr with = p[i % 2];

		IS(cuPointerSetAttribute(&on, 6, with), 0);
		IS(cuMemsetD8_v2(p[1], (unsigned char)(i + 1), MIB), 0);
		IS(cuMemcpyDtoD_v2(p[0], p[1], MIB), 0);
		IS(m[MIB - 1], on ? i + 1 : 0);
		IS(cuMemsetD8_v2(p[1], 0, MIB), 0);
		IS(m[MIB - 1], i + 1);
		IS(cuPointerSetAttribute(&off, 6, with), 0);
	}
	IS(cuMemcpyDtoD_v2(p[0] + 1, p[0], MIB - 1), 0);
	IS(cuMemFree_v2(p[1]), 0);
	IS(m[1], 3);
	munmap(m, MIB);
	close(fd);
	IS(cuMemFree_v2(p[0]), 0);
}

static int child_old_driver(void *arg)
{
	cu_ctx ctx;
	cu_ptr p;
	int fd;

	(void)arg;
	setenv("CUDA_SIM_DRIVER_VERSION", "13000", 1);
	setenv("CUDA_SIM_DMABUF", "1,0", 1);
	if (cuInit(0) || cuCtxCreate_v2(&ctx, 0, 1) || cuMemAlloc_v2(&p, MIB))
		return 1;
	if (export(&fd, p, PAGE) != 801)
		return 2;
	if (cuCtxCreate_v2(&ctx, 0, 0) || cuMemAlloc_v2(&p, MIB) || export(&fd, p, PAGE))
		return 3;
	if (map(fd, PAGE) != MAP_FAILED || cuda_sim_live() != 3)
		return 4;
	return 0;
}

static void test_out_of_fds(void)
{
	struct rlimit old, none;
	cu_ptr p;
	int fd;

	IS(cuMemAlloc_v2(&p, MIB), 0);
	getrlimit(RLIMIT_NOFILE, &old);
	none = old;
	none.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &none);
	IS(export(&fd, p, PAGE), 304);
	IS(export(&fd, p + PAGE, PAGE), 304);
	setrlimit(RLIMIT_NOFILE, &old);
	IS(export(&fd, p + PAGE, PAGE), 0);
	close(fd);
	IS(cuMemFree_v2(p), 0);
}

/* Called before cuInit. */
void test_old_driver(void)
{
	IS(in_child(child_old_driver, NULL), 0);
}

void test_export(void)
{
	test_arguments();
	test_carve();
	test_chunk();
	test_free_space();
	test_sync_memops();
	test_device_copies();
	test_out_of_fds();
}
