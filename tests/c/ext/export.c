// SPDX-License-Identifier: MIT
/*
 * ext/export.c - gdr_mem_export_dmabuf in a host. The driver of another device would
 * import the descriptor; here it is mapped, where the driver can do that.
 */
#include "guest/cuda.h"

enum { BYTES = 100000 };

static gdr_t g;
static struct buffer b;

static void make_scene(void)
{
	g = open_or_fail();
	alloc_buffer(g, &b, BYTES);
}

static int export(unsigned int flags)
{
	int fd = -1, rc = gdr_mem_export_dmabuf(g, b.mem, flags, &fd);

	if (rc == ENOTSUP && !on_doubles())
		skip_case("this GPU's driver exports no dma-bufs");
	expect_is(rc, 0);
	expect(fd >= 0);
	return fd;
}

/* What the CPU writes by the library is in each dma-buf, after the memory is freed too. */
static void shares_memory(void)
{
	static const char text[] = "written by the CPU";
	char backend[16], *p;
	int fd;

	make_scene();
	map_buffer(g, &b);
	close(export(0));
	fd = export(0);
	expect(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	p = mmap(NULL, b.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		/* The simulated driver of rm is one of those, as NVIDIA's 580 is. */
		expect_is(gdr_get_backend(g, backend, sizeof(backend)), 0);
		expect(!on_doubles() || !strcmp(backend, "rm"));
		note("this driver's dma-bufs cannot be mapped: %s", strerror(errno));
	} else {
		expect_is(gdr_copy_to_mapping(b.mh, b.va, text, sizeof(text)), 0);
		expect(!memcmp(p, text, sizeof(text)));
		expect_is(gdr_close(g), 0);
		expect(!memcmp(p, text, sizeof(text)));
		munmap(p, b.size);
	}
	close(fd);
}

static void without_descriptors(void)
{
	int fd = -7;

	make_scene();
	close(export(0));
	leave_fds(0);
	expect_is(gdr_mem_export_dmabuf(g, b.mem, 0, &fd), EMFILE);
	expect_is(fd, -7);
}

/* The driver is asked for a mapping through PCIe, by an export and by pins of dmabuf. */
static void forced_pcie(void)
{
	unsigned long (*last_flags)(void);
	gdr_mh_t mh;

	needs_doubles("a real driver does not tell what it was asked for");
	make_scene();
	last_flags = need_symbol("cuda_sim_export_flags");
	for (unsigned int flags = 0; flags <= GDR_PIN_FLAG_FORCE_PCIE; flags++) {
		if (backend_is("dmabuf")) {
			expect_is(gdr_pin_buffer_v2(g, b.dptr, b.size, flags, &mh), 0);
			expect_is(last_flags(), flags);
			expect_is(gdr_unpin_buffer(g, mh), 0);
			close(export(!flags));
			expect_is(gdr_pin_bytes(g, b.dptr, b.size, flags, &mh), 0);
			expect_is(last_flags(), flags);
			expect_is(gdr_unpin_buffer(g, mh), 0);
		}
		close(export(!flags));
		expect_is(last_flags(), !flags);
	}
}

static int freed = -1;

static void *free_it(void *unused)
{
	freed = gdr_mem_free(g, b.mem);
	return NULL;
}

static void free_beside(void)
{
	run_thread(0, free_it, NULL);
}

/* CUDA may wait for the host, which may wait for a thread that frees the memory: that one does not wait for CUDA. */
static void freed_meanwhile(void)
{
	unsigned long (*between)(void (*fn)(void), unsigned long nth), (*live)(void), before;
	int fd;

	needs_doubles("a real driver waits for nobody here");
	between = need_symbol("cuda_sim_between");
	live = need_symbol("cuda_sim_live");
	make_scene();
	close(export(0));
	expect_is(gdr_mem_free(g, b.mem), 0);
	before = live();
	for (unsigned long nth = 1; ; nth++) {
		alloc_buffer(g, &b, BYTES);
		freed = -1;
		between(free_beside, nth);
		fd = -1;
		if (!gdr_mem_export_dmabuf(g, b.mem, 0, &fd))
			close(fd);
		if (between(NULL, 0)) {
			expect(nth > 2);
			break;
		}
		expect_is(freed, 0);
		expect_is(gdr_mem_free(g, b.mem), EINVAL);
		expect_is(live(), before);
	}
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "the dma-buf is the memory, and outlives it", shares_memory, 30, 0 },
	{ "no descriptors left", without_descriptors, 30, 0 },
	{ "memory that another thread frees meanwhile", freed_meanwhile, 30, 0 },
	{ "forced PCIe", forced_pcie, 30, 0 },
	{ 0 }
};
