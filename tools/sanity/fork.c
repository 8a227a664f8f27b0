/* SPDX-License-Identifier: MIT */
/*
 * sanity/fork.c - children. CUDA cannot be used in a child that is forked after
 * cuInit, so either the fork comes first or the child does without CUDA.
 */
#include "sanity.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* All of a buffer's life, with e->g open and CUDA up. */
static void whole_life(struct env *e, uint64_t seed)
{
	unsigned char in[5000], out[5000];
	struct buf b;
	struct map m;

	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
	fill(in, sizeof(in), seed);
	check_rc(gdr_copy_to_mapping(m.mh, m.p + 3, in, sizeof(in)), 0);
	gpu_check(e, b.addr + 3, in, sizeof(in));
	check_rc(gdr_copy_from_mapping(m.mh, out, m.p + 3, sizeof(out)), 0);
	check(memcmp(in, out, sizeof(in)) == 0);
	free_mapped(e, &b, &m);
}

/* In a child: g is the parent's. */
static void expect_no_open(gdr_t g, unsigned long addr)
{
	gdr_mh_t mh = { 5 };
	gdr_mem_t mem = { 5 };
	int v = -1, minor = -1;

	check_rc(gdr_pin_buffer(g, addr, GPU_PAGE_SIZE, 0, 0, &mh), EACCES);
	check_rc(gdr_pin_buffer_v2(g, addr, GPU_PAGE_SIZE, 0, &mh), EACCES);
	check_rc(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &v), EACCES);
	check_rc(gdr_driver_get_version(g, &v, &minor), EACCES);
	check_rc(gdr_mem_alloc(g, 0, GPU_PAGE_SIZE, 0, &mem), EACCES);
	check(mh.h == 5 && mem.h == 5 && v == 0 && minor == -1);
}

/* In a child: g and m are the parent's, or g is the child's own. */
static void expect_no_handle(gdr_t g, const struct map *m, gdr_mem_t mem)
{
	unsigned char byte = 9;
	unsigned long addr = 9;
	void *va = NULL;
	gdr_info_t info;
	int flag = 9;

	mark(&info, sizeof(info));
	check_rc(gdr_copy_to_mapping(m->mh, m->p, &byte, 1), EACCES);
	check_rc(gdr_copy_from_mapping(m->mh, &byte, m->p, 1), EACCES);
	check_rc(gdr_get_info(g, m->mh, &info), EACCES);
	check_rc(gdr_get_callback_flag(g, m->mh, &flag), EACCES);
	check_rc(gdr_map(g, m->mh, &va, m->size), EACCES);
	check_rc(gdr_unmap(g, m->mh, m->va, m->size), EACCES);
	check_rc(gdr_unpin_buffer(g, m->mh), EACCES);
	check_rc(gdr_mem_get_device_ptr(g, mem, &addr, NULL), EACCES);
	check_rc(gdr_mem_free(g, mem), EACCES);
	check(byte == 9 && addr == 9 && va == NULL && flag == 9);
	check(untouched(&info, sizeof(info)));
}

static void versions_work(void)
{
	const char *s = NULL;
	int major = 0, minor = 0;

	gdr_runtime_get_version(&major, &minor);
	check(major == 2 && minor == 6);
	check_rc(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, &s), 0);
	check(s && strcmp(s, "Write Combining") == 0);
}

static void fork_first(struct env *e)
{
	pid_t pid = fork_child();

	start(e);
	whole_life(e, pid == 0);
	check_rc(gdr_close(e->g), 0);
	if (pid == 0)
		child_done();
	join_child(pid);
}

/* The parent has opened, and uses CUDA only after the fork. */
static void fork_after_open(struct env *e)
{
	pid_t pid;

	e->g = gdr_open();
	check(e->g != NULL);
	pid = fork_child();
	if (pid == 0) {
		gdr_t inherited = e->g;

		versions_work();
		expect_no_open(inherited, 0x10000);
		start(e);
		check(e->g != inherited);
		whole_life(e, 1);
		expect_no_open(inherited, 0x10000);
		check_rc(gdr_close(inherited), 0);
		expect_no_open(inherited, 0x10000);
		check_rc(gdr_close(e->g), 0);
		child_done();
	}
	start_cuda(e);
	whole_life(e, 2);
	join_child(pid);
	whole_life(e, 3);
	check_rc(gdr_close(e->g), 0);
}

static void fork_with_mapping(struct env *e)
{
	uint32_t in = 0x5eed, out = 0;
	struct buf b;
	struct map m;
	pid_t pid;

	start(e);
	alloc_mapped(e, &b, &m, MEM_EXT, GPU_PAGE_SIZE);
	check_rc(gdr_copy_to_mapping(m.mh, m.p, &in, 4), 0);
	pid = fork_child();
	if (pid == 0) {
		versions_work();
		check(read_faults(m.p));
		check(write_faults(m.p));
		check(read_faults(m.p + m.size - 1));
		expect_no_open(e->g, b.addr);
		expect_no_handle(e->g, &m, b.ext);
		child_done();
	}
	join_child(pid);
	check_rc(gdr_copy_from_mapping(m.mh, &out, m.p, 4), 0);
	check_eq(out, in);
	check(!read_faults(m.p));
	free_mapped(e, &b, &m);
	whole_life(e, 4);
	check_rc(gdr_close(e->g), 0);
}

/* The child's own gdr_t knows none of the parent's handles. */
static void fork_opens_again(struct env *e)
{
	gdr_mh_t mh = { 5 };
	struct buf b;
	struct map m;
	pid_t pid;
	int v = -1;

	start(e);
	alloc_mapped(e, &b, &m, MEM_EXT, GPU_PAGE_SIZE);
	pid = fork_child();
	if (pid == 0) {
		gdr_t inherited = e->g, own = gdr_open();

		check(own != NULL && own != inherited);
		check_rc(gdr_get_attribute(own, GDR_ATTR_USING_DMA_BUF_MMAP, &v), 0);
		/* CUDA cannot say here that dma-bufs can be mapped: if no backend is named, rm may be taken. */
		if (v || getenv("GDRCOPY_BACKEND"))
			check_eq(v, e->backend == BE_DMABUF);
		expect_no_handle(own, &m, b.ext);
		expect_no_open(inherited, b.addr);
		/* CUDA does not work here, so there is no such GPU memory. */
		check(gdr_pin_buffer(own, b.addr, b.size, 0, 0, &mh) != 0);
		check_eq(mh.h, 5);
		check_rc(gdr_close(own), 0);
		check_rc(gdr_close(own), EINVAL);
		child_done();
	}
	join_child(pid);
	check(!read_faults(m.p));
	free_mapped(e, &b, &m);
	whole_life(e, 5);
}

/* gdrdrv's ioctl that tells its version: any process should be able to ask. */
#define GDRDRV_GET_VERSION 0xC008DAFFul

union fd_message {
	struct cmsghdr align;
	char room[CMSG_SPACE(sizeof(int))];
};

static void send_fd(int sock, int fd)
{
	char byte = 0;
	struct iovec io = { &byte, 1 };
	union fd_message c = { .room = { 0 } };
	struct msghdr msg = {
		.msg_iov = &io, .msg_iovlen = 1,
		.msg_control = c.room, .msg_controllen = sizeof(c.room),
	};
	struct cmsghdr *h = CMSG_FIRSTHDR(&msg);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(h), &fd, sizeof(fd));
	check_eq(sendmsg(sock, &msg, 0), 1);
}

static int receive_fd(int sock)
{
	char byte;
	struct iovec io = { &byte, 1 };
	union fd_message c;
	struct msghdr msg = {
		.msg_iov = &io, .msg_iovlen = 1,
		.msg_control = c.room, .msg_controllen = sizeof(c.room),
	};
	int fd;

	check_eq(recvmsg(sock, &msg, 0), 1);
	check(CMSG_FIRSTHDR(&msg) != NULL);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static int find_gdrdrv(void)
{
	char path[32], target[64];
	int fd;

	for (fd = 0; fd < 1024; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = 0;
		if (strcmp(target, "/dev/gdrdrv") == 0)
			return fd;
	}
	return -1;
}

/* The driver serves only the process that opened it. */
static void fd_passing(struct env *e)
{
	uint32_t version[2] = { 0, 0 };
	int pair[2], fd;
	struct buf b;
	struct map m;
	pid_t pid;

	check_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	pid = fork_child();
	if (pid == 0) {
		fd = receive_fd(pair[1]);
		check_eq(ioctl(fd, GDRDRV_GET_VERSION, version), -1);
		check_rc(errno, EACCES);
		check(mmap(NULL, GPU_PAGE_SIZE, PROT_READ | PROT_WRITE,
			   MAP_SHARED, fd, 0) == MAP_FAILED);
		check_rc(errno, EACCES);
		child_done();
	}
	start(e);
	alloc_mapped(e, &b, &m, MEM_PLAIN, GPU_PAGE_SIZE);
	fd = find_gdrdrv();
	check(fd >= 0);
	check_eq(ioctl(fd, GDRDRV_GET_VERSION, version), 0);
	send_fd(pair[0], fd);
	join_child(pid);
	check(!read_faults(m.p));
	free_mapped(e, &b, &m);
}

const struct sanity_case fork_cases[] = {
	{ "fork_first", fork_first, BE_ALL, NULL },
	{ "fork_after_open", fork_after_open, BE_ALL, NULL },
	{ "fork_with_mapping", fork_with_mapping, BE_ALL, NULL },
	{ "fork_opens_again", fork_opens_again, BE_ALL, NULL },
	{ "fd_passing", fd_passing, BE_GDRDRV,
	  "the only descriptors here are the CUDA driver's, which does not ask who holds them" },
	{ NULL, NULL, 0, NULL }
};
