// SPDX-License-Identifier: MIT
/*
 * ext/share.c - gdr_export_fd and gdr_pin_fd: memory of a process that has CUDA, in one that
 * has none. Runs on the simulated drivers and on a GPU. What CUDA imports and exports is
 * descriptor.c's.
 */
#include "share.h"

#include <sys/socket.h>

static void use_here(const struct shared *s)
{
	gdr_t second = open_or_fail();

	fill_by_cuda(s->addr, s->size, 1);
	use(g, s->fd, skip_of(s), s->size, 1);
	check_by_cuda(s->addr, s->size, 2);
	use(second, s->fd, skip_of(s), s->size, 2);
	check_by_cuda(s->addr, s->size, 3);
	expect_is(gdr_close(second), 0);
}

/* The driver has what it keeps. */
static void export_used(struct shared *s)
{
	with_context();
	export_new(s, OBJECT);
	use_here(s);
}

/* Each kind of memory, from its first byte on and from the middle. */
static void kinds_of_memory(void)
{
	static const size_t layout[] = { OBJECT, 3 * OBJECT, 3 * OBJECT, OBJECT };
	static const size_t sizes[] = { 100, 100000, OBJECT, 5 * MIB };
	struct shared s;
	cu_ptr p;

	with_context();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		export_new(&s, sizes[i]);
		use_here(&s);
	}
	p = make_vmm(&cu, layout, 1);
	pin_and_export(&s, p + GPU_PAGE_SIZE, OBJECT - GPU_PAGE_SIZE);
	use_here(&s);
	if (by_dmabuf())
		return;
	p = make_vmm(&cu, layout, 4);
	pin_and_export(&s, p + 3 * GPU_PAGE_SIZE, 6 * OBJECT);
	use_here(&s);
}

/* GDR_EXPORT_FLAG_WHOLE: nothing of the process' but the buffer is given away. */
static void whole_objects(void)
{
	cu_ptr small, two;

	with_context();
	two = make_vmm(&cu, (size_t[]){ OBJECT, OBJECT }, 2);
	expect_is(cu.mem_alloc(&small, 4096), 0);
	const struct { cu_ptr p; size_t size; int rm, dmabuf; } of[] = {
		{ two, 2 * OBJECT, 0, ENOTSUP }, { two, OBJECT, 0, 0 }, { two, 2 * OBJECT - GPU_PAGE_SIZE, EPERM, ENOTSUP },
		{ small, 4096, EPERM, 0 }, { two + GPU_PAGE_SIZE, OBJECT - GPU_PAGE_SIZE, EPERM, 0 },
	};

	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
		gdr_mh_t mh;
		int fd = -1;

		expect_is(gdr_pin_buffer(g, of[i].p, of[i].size, 0, 0, &mh), 0);
		expect_is(gdr_export_fd(g, mh, GDR_EXPORT_FLAG_WHOLE, &fd), by_dmabuf() ? of[i].dmabuf : of[i].rm);
		close(fd);
	}
}

/* Some that no gdr_export_fd has made, and a flag that there is not. */
static void other_descriptors(void)
{
	gdr_mh_t mh = { 77 };
	struct shared s;
	long before;

	export_used(&s);
	const int fds[] = {
		-1, 1000, memfd_create("none", 0), socket(AF_UNIX, SOCK_STREAM, 0), open("/", O_RDONLY | O_PATH),
		open("/dev/nvidiactl", O_RDWR),
	};

	before = count_fds();
	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		expect_is(gdr_pin_fd(g, fds[i], 0, &mh), EINVAL);
	expect_is(gdr_pin_fd(g, s.fd, 1, &mh), EINVAL);
	expect_is(mh.h, 77);
	expect_is(count_fds(), before);
}

/* An import and an export that lack a descriptor say so. */
static void no_descriptor_left(void)
{
	struct rlimit old, none;
	gdr_mh_t mh = { 77 };
	struct shared s;
	long before;
	int fd = -7;
	void *va;

	export_used(&s);
	before = count_fds();
	expect_is(getrlimit(RLIMIT_NOFILE, &old), 0);
	none = (struct rlimit){ 3, old.rlim_max };
	expect_is(setrlimit(RLIMIT_NOFILE, &none), 0);
	expect_is(gdr_export_fd(g, s.mh, 0, &fd), EMFILE);
	expect_is(fd, -7);
	expect_is(gdr_pin_fd(g, s.fd, 0, &mh), by_dmabuf() ? EMFILE : 0);
	if (by_dmabuf()) {
		expect_is(mh.h, 77);
	} else {
		expect_is(gdr_map(g, mh, &va, OBJECT), EMFILE);
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	expect_is(setrlimit(RLIMIT_NOFILE, &old), 0);
	expect_is(count_fds(), before);
	use_here(&s);
}

/* An import on dmabuf maps a page, to see that it can. Where that page stays no pin does. */
static void munmap_is_refused(void)
{
	gdr_mh_t mh = { 77 };
	struct shared s;
	long before;

	export_used(&s);
	before = count_fds();
	refuse_call(SYS_munmap);
	expect_is(gdr_pin_fd(g, s.fd, 0, &mh), by_dmabuf() ? EPERM : 0);
	if (by_dmabuf())
		expect_is(mh.h, 77);
	else
		expect_is(gdr_unpin_buffer(g, mh), 0);
	expect_is(count_fds(), before);
}

/* A descriptor of CUDA's or of another backend's says so. */
static void of_another(void)
{
	struct cu_mem_want want = { CU_MEM_PINNED, CU_EXPORT_FD, { CU_PLACE_GPU, 0 } };
	const char *machine = getenv("NVRM_SIM_MACHINE");
	bool is_mig = machine && !strncmp(machine, "mig", 3);
	int (*give)(int *, cu_mem, int, unsigned long long), (*range)(int *, cu_ptr, size_t, int, unsigned long long);
	void (*fail)(const char *name, int result, int nth);
	gdr_mh_t mh = { 77 };
	cu_mem mem;
	cu_ptr p;
	int fd;

	with_context();
	give = need_symbol("cuMemExportToShareableHandle");
	range = need_symbol("cuMemGetHandleForAddressRange");
	if (by_dmabuf() || is_mig) {
		expect_is(cu.create(&mem, OBJECT, &want, 0), 0);
		expect_is(give(&fd, mem, CU_EXPORT_FD, 0), 0);
		expect_is(gdr_pin_fd(g, fd, 0, &mh), by_dmabuf() ? EINVAL : ENOTSUP);
		expect(logged(by_dmabuf() ? "GDRCOPY_BACKEND=rm" : "(MIG)"));
		close(fd);
	}
	expect_is(cu.mem_alloc(&p, OBJECT), 0);
	if (range(&fd, p, OBJECT, 1, 0))
		skip_case("this driver exports no dma-bufs");
	expect_is(gdr_pin_fd(g, fd, 0, &mh), by_dmabuf() ? 0 : ENOTSUP);
	if (!by_dmabuf())
		expect(logged("GDRCOPY_BACKEND=dmabuf"));
	fail = cuda_symbol("rm_sim_fail");
	if (fail && by_dmabuf()) {
		fail("EXPORTER", 1, 0);
		expect_is(gdr_pin_fd(g, fd, 0, &mh), EINVAL);
		fail("EXPORTER", 0, 0);
	}
	close(fd);
}

static void set_marks(void *arg)
{
	int fd = *(int *)arg;

	expect_is(fcntl(fd, F_SETSIG, SIGUSR1), 0);
	expect_is(fcntl(fd, F_SETOWN, getpid()), 0);
	expect_is(fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK), 0);
}

/* Who has a descriptor may do to its file what fcntl does: neither side loses its pin. */
static void marked_by_another(void)
{
	struct shared s;
	long before;
	gdr_mh_t mh;
	void *va;
	int next;

	export_used(&s);
	next = dup(s.fd);
	close(next);
	expect_is(gdr_pin_fd(g, s.fd, 0, &mh), 0);
	expect(!by_dmabuf() || fcntl(next, F_GETFD) == FD_CLOEXEC);	/* the library's own */
	before = count_fds();
	expect(in_child("a guest that marks the file", set_marks, &s.fd, 10));
	expect_is(gdr_map(g, mh, &va, OBJECT), 0);
	expect_is(gdr_map(g, s.mh, &va, OBJECT), 0);
	use_here(&s);
	expect_is(gdr_unpin_buffer(g, mh), 0);
	expect_is(gdr_unpin_buffer(g, s.mh), 0);
	expect_is(count_fds(), before - (by_dmabuf() ? 2 : 0));
}

/* The memory outlives the buffer, the allocation, and each of the descriptors. */
static void outlives(void)
{
	struct shared s;
	uint32_t *h;
	gdr_mh_t mh;
	void *va;
	int fd;

	with_context();
	export_new(&s, OBJECT);
	fill_by_cuda(s.addr, s.size, 5);
	expect_is(gdr_unpin_buffer(g, s.mh), 0);
	expect_is(cu.mem_free(s.addr), 0);
	expect_is(gdr_pin_fd(g, s.fd, 0, &mh), 0);
	expect_is(gdr_export_fd(g, mh, 0, &fd), 0);
	close(s.fd);
	expect_is(gdr_unpin_buffer(g, mh), 0);
	expect_is(gdr_pin_fd(g, fd, 0, &mh), 0);
	close(fd);
	expect_is(gdr_map(g, mh, &va, OBJECT), 0);
	h = words_of(OBJECT, 6);
	expect_is(gdr_copy_from_mapping(mh, h, va, OBJECT), 0);
	expect_words(h, OBJECT, 5);
	expect_is(gdr_close(g), 0);
}

/* A process without CUDA: a forked child of one that has it. */
static void be_guest(void *arg)
{
	const struct guest *x = arg;
	gdr_mh_t mh;
	gdr_t at = open_or_fail();

	use(at, x->fd, x->skip, x->size, x->seed);
	expect(gdr_pin_buffer(at, 0x7f0000000000, 4096, 0, 0, &mh));
	expect_is(gdr_close(at), 0);
}

/* A container without the node of the owner's GPU. */
static void without_the_gpu(void *arg)
{
	void (*fail_rm)(const char *name, int result, int nth) = need_symbol("rm_sim_fail");
	const struct guest *x = arg;
	gdr_t at = open_or_fail();
	gdr_mh_t mh;

	fail_rm("OPEN", ENOENT, 2);	/* the first is /dev/nvidiactl */
	expect_is(gdr_pin_fd(at, x->fd, 0, &mh), ENODEV);
	fail_rm("OPEN", EACCES, 1);
	expect_is(gdr_pin_fd(at, x->fd, 0, &mh), EACCES);
	fail_rm("OPEN", 0, 0);
	be_guest(arg);
}

#define ANEW_FD 100

/* run_anew() makes it. On the doubles rm has no libcuda but the machine's; dmabuf wants to know its version. */
static void anew(void)
{
	expect_is(count_maps_of("libcuda"), 0);
	be_guest(&(struct guest){ ANEW_FD, 0, OBJECT, 1 });
	if (on_doubles() && !by_dmabuf() && access("/dev/nvidiactl", F_OK))
		expect_is(count_maps_of("libcuda"), 0);
}

static void exec_guest(void *arg)
{
	const struct guest *x = arg;

	expect_is(dup2(x->fd, ANEW_FD), ANEW_FD);
	if (on_doubles() && !by_dmabuf()) {
		unsetenv("LD_LIBRARY_PATH");
		setenv("LD_PRELOAD", getenv("RM_MMAP"), 1);
	}
	run_anew("anew");
}

/* fn is what a guest does. */
static void run_guest(void *fn)
{
	struct shared s;

	if (fn == without_the_gpu && (!on_doubles() || by_dmabuf()))
		skip_case("only the simulated driver refuses a node; a dma-buf needs none");
	if (fn == exec_guest && on_doubles() && !getenv("RM_MMAP"))
		skip_case("the simulated driver's mmap is in the simulated libcuda");
	with_context();
	export_new(&s, OBJECT);
	fill_by_cuda(s.addr, s.size, 1);
	expect(in_child("a guest", fn, &(struct guest){ s.fd, skip_of(&s), OBJECT, 1 }, 20));
	check_by_cuda(s.addr, s.size, 2);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "each kind of memory", kinds_of_memory, 30 },
	{ "only what is all of its objects, where that is asked for", whole_objects, 10 },
	{ "descriptors of anything else", other_descriptors, 10 },
	{ "no descriptor left", no_descriptor_left, 10 },
	{ "an import whose munmap is refused", munmap_is_refused, 10 },
	{ "a descriptor of CUDA's, or of another backend", of_another, 10 },
	{ "a file that another process has marked", marked_by_another, 10 },
	{ "the memory outlives all but the last pin", outlives, 10 },
	{ "in a child that is forked after cuInit", NULL, 20, 0, run_guest, be_guest },
	{ "of a GPU whose node is not there", NULL, 10, 0, run_guest, without_the_gpu },
	{ "in a program without libcuda", NULL, 20, 0, run_guest, exec_guest },
	{ "anew", anew },
	{ NULL },
};
