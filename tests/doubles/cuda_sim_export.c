// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: memory as file descriptors. Test code.
 *
 * Offset 0 of an exported dma-buf is the start of the range. Offset 0 of a memfd is the
 * start of the memory. So a range that starts elsewhere is carved: its bytes move to a
 * memfd of their own, and the view of the memory shows that memfd in their place. A
 * process that has the old memfd mapped would no longer see the same bytes. So a carve is
 * refused while anyone has it mapped.
 *
 * A memfd is named gdrsim:DEVICE:cuda, of a whole allocation, or gdrsim:DEVICE:dmabuf, of a carve.
 */
#include "cuda_sim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int dead = -1;	/* see dead_fd() */

/* The users of a memfd in this process, apart from this library. */
struct users {
	int fd;		/* one of its descriptors, -1 for none */
	bool mapped;
};

static int find_fd(dev_t dev, ino_t ino, int not_this, int *fd)
{
	DIR *dir = opendir("/proc/thread-self/fd");
	const struct dirent *e;
	struct stat st;

	*fd = -1;
	if (!dir)
		return CU_OPERATING_SYSTEM;
	while (*fd < 0 && (e = readdir(dir))) {
		int n = atoi(e->d_name);

		if (e->d_name[0] == '.' || n == not_this || n == dirfd(dir))
			continue;
		if (!fstat(n, &st) && st.st_dev == dev && st.st_ino == ino)
			*fd = n;
	}
	closedir(dir);
	return CU_OK;
}

static int find_mapping(dev_t dev, ino_t ino, const struct mem *m, bool *mapped)
{
	FILE *f = fopen("/proc/thread-self/maps", "re");
	uintptr_t view = (uintptr_t)m->view;
	char line[512];

	*mapped = false;
	if (!f)
		return CU_OPERATING_SYSTEM;
	while (!*mapped && fgets(line, sizeof(line), f)) {
		unsigned long start, i;
		unsigned int major, minor;

		if (sscanf(line, "%lx-%*x %*s %*x %x:%x %lu", &start, &major, &minor, &i) != 4)
			continue;
		*mapped = i == ino && makedev(major, minor) == dev &&
			  (start < view || start >= view + m->size);
	}
	fclose(f);
	return CU_OK;
}

static int find_users(dev_t dev, ino_t ino, const struct mem *m, struct users *u)
{
	int result = find_fd(dev, ino, m->fd, &u->fd);

	return result ? result : find_mapping(dev, ino, m, &u->mapped);
}

static int cannot(const char *why)
{
	fprintf(stderr, "simulated libcuda: cannot emulate this export: %s; unpin the other range first, or let both start at the same address\n",
		why);
	return CU_UNKNOWN;
}

static bool overlap(const struct carve *c, uint64_t offset, uint64_t size)
{
	return c->offset < offset + size && offset < c->offset + c->size;
}

/* Give a carve's bytes back to m's own memfd. No one else may use the carve. */
static int merge(struct mem *m, struct carve **link)
{
	struct carve *c = *link;
	uint8_t *at = m->view + c->offset;
	ssize_t n = pwrite(m->fd, at, c->size, (off_t)c->offset);

	if (n < 0 || (uint64_t)n != c->size)
		return CU_OPERATING_SYSTEM;
	if (mmap(at, c->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
		 m->fd, (off_t)c->offset) == MAP_FAILED)
		return CU_OPERATING_SYSTEM;
	*link = c->next;
	free(c);
	return CU_OK;
}

/* Merge all carves that overlap the range. Each must be unused. */
static int merge_all(struct mem *m, uint64_t offset, uint64_t size)
{
	struct carve **link = &m->carves;

	while (*link) {
		struct users u;
		int result;

		if (!overlap(*link, offset, size)) {
			link = &(*link)->next;
			continue;
		}
		result = find_users((*link)->dev, (*link)->ino, m, &u);
		if (result)
			return result;
		if (u.fd >= 0 || u.mapped)
			return cannot("part of the range is exported from another start");
		result = merge(m, link);
		if (result)
			return result;
	}
	return CU_OK;
}

/* Check that no one uses m's own memfd for a byte from offset on. */
static int own_memfd_free(struct mem *m, uint64_t offset)
{
	struct users u;
	int result;

	if (offset >= m->exported)
		return CU_OK;
	result = find_users(m->dev, m->ino, m, &u);
	if (result)
		return result;
	if (u.fd >= 0 || u.mapped)
		return cannot("the memory is exported from its start on");
	m->exported = 0;
	return CU_OK;
}

static int carve_fill(struct mem *m, uint64_t offset, uint64_t size, int fd)
{
	uint8_t *at = m->view + offset;
	ssize_t n;

	if (ftruncate(fd, (off_t)size) < 0)
		return CU_OPERATING_SYSTEM;
	n = pwrite(fd, at, size, 0);
	if (n < 0 || (uint64_t)n != size)
		return CU_OPERATING_SYSTEM;
	if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
		 fd, 0) == MAP_FAILED)
		return CU_OPERATING_SYSTEM;
	return CU_OK;
}

/*
 * The caller gets the memfd, and this library keeps no copy of it. So a program that
 * closes the descriptor has as many descriptors as before.
 */
static int carve_new(struct mem *m, uint64_t offset, uint64_t size, int *fd)
{
	struct carve *c = calloc(1, sizeof(*c));
	int result = CU_OPERATING_SYSTEM;
	struct stat st;
	char name[32];

	if (!c)
		return CU_OUT_OF_MEMORY;
	snprintf(name, sizeof(name), "gdrsim:%d:dmabuf", m->device);
	*fd = memfd_create(name, 0);
	if (*fd < 0 || fstat(*fd, &st) < 0)
		goto fail;
	result = carve_fill(m, offset, size, *fd);
	if (result)
		goto fail;
	*c = (struct carve){ .next = m->carves, .offset = offset, .size = size,
			     .dev = st.st_dev, .ino = st.st_ino };
	m->carves = c;
	return CU_OK;
fail:
	if (*fd >= 0)
		close(*fd);
	free(c);
	return result;
}

static int copy_fd(int fd, int *copy)
{
	*copy = fcntl(fd, F_DUPFD, 0);
	return *copy < 0 ? CU_OPERATING_SYSTEM : CU_OK;
}

/*
 * *fd becomes a copy of theirs. At any time another thread may close theirs, and its
 * number may go to another file. Then *fd is -1.
 */
static int copy_if_still(int theirs, const struct carve *c, int *fd)
{
	struct stat st;

	*fd = fcntl(theirs, F_DUPFD, 0);
	if (*fd < 0)
		return errno == EBADF ? CU_OK : CU_OPERATING_SYSTEM;
	if (!fstat(*fd, &st) && st.st_dev == c->dev && st.st_ino == c->ino)
		return CU_OK;
	close(*fd);
	*fd = -1;
	return CU_OK;
}

/* One more descriptor for the carve at offset, if it is big enough and in use. */
static int carve_share(struct mem *m, uint64_t offset, uint64_t size, int *fd)
{
	const struct carve *c;
	struct users u;
	int result;

	*fd = -1;
	c = LIST_FIND(k, m->carves, k->offset == offset);
	if (!c || size > c->size)
		return CU_OK;
	do {
		result = find_users(c->dev, c->ino, m, &u);
		if (!result && u.fd >= 0)
			result = copy_if_still(u.fd, c, fd);
	} while (!result && u.fd >= 0 && *fd < 0);
	if (result || *fd >= 0)
		return result;
	return u.mapped ? cannot("the range is mapped, and its descriptor is closed") : CU_OK;
}

/* A descriptor whose offset 0 is the range's first byte. The range is whole host pages. */
int mem_export(struct mem *m, uint64_t offset, uint64_t size, int *fd)
{
	int result;

	if (offset) {
		result = carve_share(m, offset, size, fd);
		if (result || *fd >= 0)
			return result;
		result = own_memfd_free(m, offset);
		if (result)
			return result;
	}
	result = merge_all(m, offset, size);
	if (result)
		return result;
	if (offset)
		return carve_new(m, offset, size, fd);
	result = copy_fd(m->fd, fd);
	if (!result && m->exported < size)
		m->exported = size;
	return result;
}

/* What drivers before 13.3 give: a descriptor that cannot be mapped. */
static int dead_fd(int *fd)
{
	int ends[2];

	if (dead < 0) {
		if (pipe2(ends, O_CLOEXEC) < 0)
			return CU_OPERATING_SYSTEM;
		close(ends[1]);
		dead = ends[0];
	}
	return copy_fd(dead, fd);
}

bool dmabuf_supported(int device)
{
	bool otherwise = rm_mode() ? rm_shares(device) && !rm_is_system(device) : !kernel_mode();

	return device_flag("CUDA_SIM_DMABUF", device, otherwise);
}

/*
 * The buffer that the range begins in. As in the real driver the range may end past the
 * buffer, but not past the object, which small buffers share; and it may not begin in
 * free space of the object.
 */
static struct buffer *range_buffer(uint64_t addr, uint64_t size)
{
	struct buffer *b = buffer_find(addr);
	uint64_t offset = b ? b->offset + addr - b->addr : 0;

	return b && size <= b->mem->size && offset <= b->mem->size - size ? b : NULL;
}

/* For pool memory the real driver makes a request that fails. */
static int export_by_driver(const struct buffer *b, uint64_t offset, uint64_t size, int *fd)
{
	uint64_t claimed = b->chunk && b->chunk->pool ? size - offset : size;

	if (b->import)
		return CU_INVALID_VALUE;
	return rm_export_range(b->mem, offset, size, claimed, dmabuf_mmap(b->mem->device), fd);
}

static int export_range(void *out, uint64_t addr, size_t size, int type, uint64_t flags)
{
	uint64_t mask = (uint64_t)getpagesize() - 1, offset;
	const struct buffer *b;
	int fd, result;

	if (!out || !size || (addr | size) & mask || type != 1 || flags > 1)
		return CU_INVALID_VALUE;
	b = range_buffer(addr, size);
	if (!b)
		return CU_INVALID_VALUE;
	if (!dmabuf_supported(b->mem->device))
		return CU_NOT_SUPPORTED;
	offset = b->offset + addr - b->addr;
	if (rm_mode())
		result = export_by_driver(b, offset, size, &fd);
	else if (kernel_mode())
		result = kernel_export(b->mem->kernel, offset, size, &fd);
	else if (!dmabuf_mmap(b->mem->device))
		result = dead_fd(&fd);
	else
		result = mem_export(b->mem, offset, size, &fd);
	if (!result)
		memcpy(out, &fd, sizeof(fd));
	return result;
}

static unsigned long last_flags;

SIM_API unsigned long cuda_sim_export_flags(void)
{
	return last_flags;
}

SIM_QUESTION(enter_ctx, cuMemGetHandleForAddressRange, addr, (void *out, uint64_t addr, size_t size, int type, uint64_t flags),
	     export_range(out, addr, size, type, last_flags = flags))

/* Whether descriptor n is simulated device memory, or a dup of dead. */
static bool ours(int n)
{
	char path[64], link[64];
	struct stat st, dead_st;
	ssize_t len;

	if (rm_mode())
		return rm_fd_holds(n);
	if (dead >= 0 && !fstat(n, &st) && !fstat(dead, &dead_st) &&
	    st.st_dev == dead_st.st_dev && st.st_ino == dead_st.st_ino)
		return true;
	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", n);
	len = readlink(path, link, sizeof(link) - 1);
	if (len < 0)
		return false;
	link[len] = '\0';
	return strncmp(link, "/memfd:gdrsim:", 14) == 0 &&
	       (strstr(link, ":cuda ") || strstr(link, ":dmabuf "));
}

/* Descriptors that were given out and are still open in this process. */
unsigned long exported_fds(void)
{
	DIR *dir = opendir("/proc/thread-self/fd");
	const struct dirent *e;
	unsigned long n = 0;

	if (!dir) {
		perror("simulated libcuda: cannot count descriptors");
		abort();
	}
	while ((e = readdir(dir)))
		n += e->d_name[0] != '.' && ours(atoi(e->d_name));
	closedir(dir);
	/* Each memory has one descriptor of its own, and there is one dead one. */
	return n - mem_count() - (dead >= 0);
}
