// SPDX-License-Identifier: MIT
/* Simulated libcuda: device memory, in memfds or of a driver. Test code. */
#include "cuda_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE_MEMORY (64ull << 30)

static uint64_t used[SIM_MAX_DEVICES];
static unsigned long count;	/* memories, each with one descriptor */

unsigned long mem_count(void)
{
	return count;
}

uint64_t mem_total(void)
{
	if (rm_mode())
		return rm_total();
	return kernel_mode() ? kernel_total() : DEVICE_MEMORY;
}

uint64_t mem_free_bytes(int device)
{
	if (rm_mode())
		return rm_free_bytes(device);
	return kernel_mode() ? kernel_free_bytes() : DEVICE_MEMORY - used[device];
}

/* A new struct that fill() puts the memory into. */
static struct mem *mem_of(int device, int *result, int (*fill)(struct mem *, const void *), const void *arg)
{
	struct mem *m = calloc(1, sizeof(*m));

	*result = CU_OUT_OF_MEMORY;
	if (!m)
		return NULL;
	m->refs = 1;
	m->id = next_id();
	m->device = device;
	m->fd = -1;
	*result = fill(m, arg);
	if (!*result)
		return m;
	free(m);
	return NULL;
}

/* All of a memfd, which is the memory's own from then on. */
static int fill_fd(struct mem *m, const void *fd)
{
	struct stat st;

	m->fd = *(const int *)fd;
	if (fstat(m->fd, &st) < 0)
		return CU_OUT_OF_MEMORY;
	m->dev = st.st_dev;
	m->ino = st.st_ino;
	m->size = (uint64_t)st.st_size;
	m->view = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->fd, 0);
	if (m->view == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	used[m->device] += m->size;
	count++;
	return CU_OK;
}

static int fill_kernel(struct mem *m, const void *size)
{
	m->size = *(const uint64_t *)size;
	return kernel_mem_new(&m->size, &m->kernel, &m->view);
}

static int fill_new(struct mem *m, const void *size)
{
	return rm_mem_new(m, *(const uint64_t *)size);
}

/* It is of no device. The client has to have it below one. */
static int fill_host(struct mem *m, const void *size)
{
	m->device = 0;
	m->host = true;
	return rm_mem_new(m, *(const uint64_t *)size);
}

struct mem *mem_new_host(uint64_t size, int *result)
{
	return mem_of(-1, result, fill_host, &size);
}

static int fill_import(struct mem *m, const void *fd)
{
	return rm_import_object(m, *(const int *)fd);
}

struct mem *mem_import_fd(int fd, int *result)
{
	return mem_of(-1, result, fill_import, &fd);
}

static int fill_shared(struct mem *m, const void *names)
{
	const uint32_t *n = names;

	return rm_import_shared(m, n[0], n[1]);
}

struct mem *mem_import_shared(uint32_t client, uint32_t object, int *result)
{
	uint32_t names[] = { client, object };

	return mem_of(-1, result, fill_shared, names);
}

struct mem *mem_new(int device, uint64_t size, int *result)
{
	struct mem *m;
	char name[32];
	int fd;

	if (size > mem_free_bytes(device)) {
		*result = CU_OUT_OF_MEMORY;
		return NULL;
	}
	if (kernel_mode())
		return mem_of(device, result, fill_kernel, &size);
	if (rm_mode())
		return mem_of(device, result, fill_new, &size);
	snprintf(name, sizeof(name), "gdrsim:%d:cuda", device);
	*result = CU_OPERATING_SYSTEM;
	fd = memfd_create(name, MFD_CLOEXEC);
	m = fd >= 0 && !ftruncate(fd, (off_t)size) ? mem_of(device, result, fill_fd, &fd) : NULL;
	if (!m && fd >= 0)
		close(fd);
	return m;
}

struct mem *mem_get(struct mem *m)
{
	m->refs++;
	return m;
}

void mem_put(struct mem *m)
{
	if (--m->refs)
		return;
	while (m->carves) {
		struct carve *c = m->carves;

		m->carves = c->next;
		free(c);
	}
	if (m->object) {
		rm_mem_free(m);
		free(m);
		return;
	}
	munmap(m->view, m->size);
	if (m->fd < 0) {
		kernel_mem_free(m->kernel);
	} else {
		used[m->device] -= m->size;
		count--;
		close(m->fd);
	}
	free(m);
}

/* Make the first size bytes of m appear at the device address addr. */
int mem_map(const struct mem *m, uint64_t addr, uint64_t size, struct p2p_tokens *tokens)
{
	if (kernel_mode())
		return kernel_map(m->kernel, addr, size, tokens);
	memset(tokens, 0, sizeof(*tokens));
	tokens->token = 0x70327000 + (uint64_t)m->device;
	tokens->va_space = 1 + (uint32_t)m->device;
	return CU_OK;
}

void mem_unmap(uint64_t addr)
{
	if (kernel_mode())
		kernel_unmap(addr);
}
