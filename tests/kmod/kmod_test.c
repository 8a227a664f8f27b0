// SPDX-License-Identifier: MIT
/*
 * kmod_test - tests every duty of gdrdrv, by the loaded module's ioctls. It runs as root,
 * with the simulated nvidia.ko and gdrdrv.ko (dbg_enabled=1) loaded: see tests/vm.
 *
 * 	kmod_test [-l] [-t name] [-k kills] [-f fuzz rounds] [-s seed]
 *	kmod_test -u N	unload gdrdrv after the last close of buffers, which the GPU driver
 *			refuses to take N times; all: each time
 *
 * Each test runs in a child of its own. After each test nothing may be left: no
 * allocation, no page table, no held pages, no broken rule of nv-p2p. The kernel's log has a
 * line where each test begins; whoever runs this looks there for complaints (guest-init.sh).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../kmod/gdrdrv_uapi.h"
#include "nvidia_sim_uapi.h"

#define DEV "/dev/gdrdrv"
#define GPU_PAGE 0x10000UL
#define HANG_SECONDS 600
#define SKIPPED 77

static unsigned int seed = 1;
static int kills = 100;
static int fuzz_rounds = 20000;
static int unload_failures = -1;
static int sim = -1;

static void fail(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	printf("# %s:%d: ", file, line);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf(" (errno %d)\n", errno);
	fflush(stdout);
	_exit(1);
}

#define CHECK(cond) \
	((cond) ? (void)0 : fail(__FILE__, __LINE__, "%s", #cond))
#define CHECK_ERR(call, want)						\
	do {								\
		errno = 0;						\
		long got_ = (long)(call);				\
		if (got_ != -1 || errno != (want))			\
			fail(__FILE__, __LINE__, "%s: %ld, want -1 and errno %d", \
			     #call, got_, want);			\
	} while (0)

/* Simulated GPU memory. */

static void set_knob(unsigned int knob, unsigned int value)
{
	struct nvidia_sim_set s = { .knob = knob, .value = value };

	CHECK(ioctl(sim, NVIDIA_SIM_SET, &s) == 0);
}

static struct nvidia_sim_stats stats(void)
{
	struct nvidia_sim_stats s;

	CHECK(ioctl(sim, NVIDIA_SIM_STATS, &s) == 0);
	return s;
}

static uint64_t gpu_alloc(size_t size)
{
	struct nvidia_sim_alloc a = { .size = size };

	CHECK(ioctl(sim, NVIDIA_SIM_ALLOC, &a) == 0);
	return a.va;
}

static void gpu_free(uint64_t va)
{
	CHECK(ioctl(sim, NVIDIA_SIM_FREE, &va) == 0);
}

static unsigned char *gpu_view(uint64_t va, size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, sim, va);

	CHECK(p != MAP_FAILED);
	return p;
}

/* gdrdrv. */

static int gdr_open(void)
{
	int fd = open(DEV, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static int try_pin(int fd, uint64_t addr, uint64_t size, uint64_t *handle)
{
	struct gdrdrv_pin p = { .addr = addr, .size = size };
	int ret = ioctl(fd, GDRDRV_IOC_PIN, &p);

	*handle = p.handle;
	return ret;
}

static uint64_t pin(int fd, uint64_t addr, uint64_t size)
{
	uint64_t h;

	CHECK(try_pin(fd, addr, size, &h) == 0);
	return h;
}

static int unpin(int fd, uint64_t handle)
{
	struct gdrdrv_unpin p = { .handle = handle };

	return ioctl(fd, GDRDRV_IOC_UNPIN, &p);
}

static void *map_prot(int fd, uint64_t handle, size_t size, int prot, int flags)
{
	return mmap(NULL, size, prot, flags, fd,
		    (off_t)(handle * (uint64_t)getpagesize()));
}

static void *try_map(int fd, uint64_t handle, size_t size)
{
	return map_prot(fd, handle, size, PROT_READ | PROT_WRITE, MAP_SHARED);
}

static volatile unsigned char *map(int fd, uint64_t handle, size_t size)
{
	void *p = try_map(fd, handle, size);

	CHECK(p != MAP_FAILED);
	return p;
}

static struct gdrdrv_info_v2 info(int fd, uint64_t handle)
{
	struct gdrdrv_info_v2 i = { .handle = handle };

	CHECK(ioctl(fd, GDRDRV_IOC_INFO_V2, &i) == 0);
	return i;
}

static int req_type(int fd, uint64_t handle, unsigned int type)
{
	struct gdrdrv_req_type r = { .handle = handle, .type = type };

	return ioctl(fd, GDRDRV_IOC_REQ_TYPE, &r);
}

/* Faults. */

static __thread sigjmp_buf fault_env;
static __thread volatile sig_atomic_t fault_armed;

static void on_fault(int sig)
{
	if (!fault_armed)
		_exit(99);
	siglongjmp(fault_env, sig);
}

static void catch_faults(void)
{
	struct sigaction sa = { .sa_handler = on_fault };

	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
}

/* The signal that reading there raises, or 0. */
static int read_faults(const volatile unsigned char *p)
{
	int sig = sigsetjmp(fault_env, 1);

	if (!sig) {
		fault_armed = 1;
		(void)*p;
	}
	fault_armed = 0;
	return sig;
}

static bool is_fault(int sig)
{
	return sig == SIGBUS || sig == SIGSEGV;
}

#define PARAMETERS "/sys/module/gdrdrv/parameters/"

/* A parameter that is on or off. */
static bool is_on(const char *path)
{
	FILE *f = fopen(path, "r");
	char c;

	CHECK(f && fread(&c, 1, 1, f) == 1);
	fclose(f);
	return c == 'Y' || c == '1';
}

/* The number that a line of the file has in that place. */
static long long number_in(const char *path, const char *format)
{
	FILE *f = fopen(path, "r");
	char line[256];
	long long n;
	bool found = false;

	CHECK(f);
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, format, &n) == 1;
	fclose(f);
	CHECK(found);
	return n;
}

static int held(void)
{
	return number_in("/proc/driver/gdrdrv/nv_get_pages_refcount", "%lld");
}

/* How many pinnings the GPU driver has not taken back and never will. */
static int lost(void)
{
	return number_in("/proc/driver/gdrdrv/params", "lost pinnings: %lld");
}

/* The GPU driver refuses as many puts. */
static void refuse(unsigned int puts, int error)
{
	set_knob(NVIDIA_SIM_FAIL_PUTS, puts);
	set_knob(NVIDIA_SIM_FAIL_PUT, error);
}

/* It refuses all, until it is told otherwise. */
#define ALL INT32_MAX

/* Until the worker has had taken all that the GPU driver refused; else the test hangs. */
static void wait_until_taken(void)
{
	while (held())
		usleep(1000);
	CHECK(stats().pins == 0);
}

/* The number of the last child. */
static pid_t child_was;

/*
 * A child with that number, which no process has; its descriptors are ours, too. 0: a child
 * with any number, and descriptors of its own.
 */
static pid_t start_numbered(pid_t number, void (*fn)(void *), void *arg)
{
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
		uint64_t set_tid, set_tid_size;
	} how = {
		.flags = CLONE_FILES, .exit_signal = SIGCHLD,
		.set_tid = (uintptr_t)&number, .set_tid_size = 1,
	};
	pid_t pid;

	fflush(stdout);
	pid = number ? (pid_t)syscall(SYS_clone3, &how, sizeof(how)) : fork();
	CHECK(pid >= 0);
	if (!pid) {
		fn(arg);
		fflush(stdout);
		_exit(0);
	}
	child_was = pid;
	return pid;
}

static pid_t start_child(void (*fn)(void *), void *arg)
{
	return start_numbered(0, fn, arg);
}

/* Waits until it has stopped or ended. */
static int end_of(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static int in_child(void (*fn)(void *), void *arg)
{
	return end_of(start_child(fn, arg));
}

/* Tests. */

/*
 * Programs built with any library since 2.0 send exactly these bytes. Nothing here may
 * come from gdrdrv_uapi.h. The bytes around those that the driver gets must not change.
 */
static void old_call(int fd, unsigned int code, void *bytes, size_t size)
{
	unsigned char box[128];
	size_t i;

	memset(box, 0xa5, sizeof(box));
	memcpy(box + 32, bytes, size);
	CHECK(ioctl(fd, code, box + 32) == 0);
	memcpy(bytes, box + 32, size);
	for (i = 0; i < sizeof(box); i++)
		CHECK(box[i] == 0xa5 || (i >= 32 && i < 32 + size));
}

static uint32_t word(const void *bytes, size_t at)
{
	uint32_t v;

	memcpy(&v, (const char *)bytes + at, sizeof(v));
	return v;
}

/* Maps it, asks for it by INFO and INFO_V2, unmaps and unpins it. */
static void old_calls(int fd, uint64_t handle, uint64_t va)
{
	uint64_t info[6] = { handle }, info2[6] = { handle, 0, 0, 0, 0, -1 }, flag[2] = { handle };
	volatile unsigned char *p;

	p = mmap(NULL, GPU_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		 (off_t)handle * getpagesize());
	CHECK(p != MAP_FAILED);
	p[77] = 7;
	CHECK(gpu_view(va, GPU_PAGE)[77] == 7);
	old_call(fd, 0xC008DA04, info, 48);
	CHECK(info[0] == handle && info[1] == va && info[2] == GPU_PAGE);
	CHECK(word(info, 24) == GPU_PAGE && word(info, 28) > 0 && info[4] > 0);
	CHECK(word(info, 40) == 1 && word(info, 44) == 1);
	old_call(fd, 0xC008DA05, info2, 48);
	CHECK(!memcmp(info2, info, 40) && info2[5] == 1);
	old_call(fd, 0xC008DA03, flag, 12);
	CHECK(flag[0] == handle && word(flag, 8) == 0);
	CHECK(munmap((void *)p, GPU_PAGE) == 0);
	old_call(fd, 0xC008DA04, info, 48);
	CHECK(word(info, 40) == 0 && word(info, 44) == 0);
	old_call(fd, 0xC008DA02, &handle, 8);
}

/* Versions 2.5 and 2.6 pin by PIN_BUFFER_V2, and know attributes and mapping types. */
static void test_old_libraries(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE), version = 0, attr = 1, type[2];
	uint64_t pin[5] = { va, GPU_PAGE }, pin2[4] = { va, GPU_PAGE };
	int fd = gdr_open();

	old_call(fd, 0xC008DAFF, &version, 8);
	CHECK(word(&version, 0) == 0x20006 && word(&version, 4) == 0x20000);
	old_call(fd, 0xC028DA01, pin, 40);
	CHECK(pin[0] == va && pin[1] == GPU_PAGE && pin[4] != 0);
	old_calls(fd, pin[4], va);
	old_call(fd, 0xC008DA06, &attr, 8);
	CHECK(word(&attr, 0) == 1 && word(&attr, 4) == 1);
	old_call(fd, 0xC020DA07, pin2, 32);
	CHECK(pin2[0] == va && pin2[1] == GPU_PAGE && pin2[2] == 0 && pin2[3] != 0);
	type[0] = pin2[3];
	type[1] = 1;
	old_call(fd, 0xC008DA08, type, 12);
	CHECK(type[0] == pin2[3] && word(type, 8) == 1);
	old_calls(fd, pin2[3], va);
}

static const unsigned int all_codes[] = {
	GDRDRV_IOC_PIN, GDRDRV_IOC_UNPIN, GDRDRV_IOC_CB_FLAG, GDRDRV_IOC_INFO,
	GDRDRV_IOC_INFO_V2, GDRDRV_IOC_ATTR, GDRDRV_IOC_PIN_V2,
	GDRDRV_IOC_REQ_TYPE, GDRDRV_IOC_VERSION,
};
#define NCODES (sizeof(all_codes) / sizeof(all_codes[0]))

/* If a request cannot be read, or its answer cannot be written, no pinning may be left. */
static void test_bad_pointers(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE);
	struct gdrdrv_pin p = { .addr = va, .size = GPU_PAGE };
	struct gdrdrv_pin_v2 p2 = { .addr = va, .size = GPU_PAGE };
	char *page = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = gdr_open();
	size_t i;

	for (i = 0; i < NCODES; i++)
		CHECK_ERR(ioctl(fd, all_codes[i], NULL), EFAULT);
	memcpy(page, &p, sizeof(p));
	memcpy(page + 64, &p2, sizeof(p2));
	CHECK(mprotect(page, getpagesize(), PROT_READ) == 0);
	CHECK_ERR(ioctl(fd, GDRDRV_IOC_PIN, page), EFAULT);
	CHECK_ERR(ioctl(fd, GDRDRV_IOC_PIN_V2, page + 64), EFAULT);
	CHECK(held() == 0);
	/* Nobody can unpin it, so a worker puts what the GPU driver refuses. */
	refuse(ALL, ENOMEM);
	CHECK_ERR(ioctl(fd, GDRDRV_IOC_PIN, page), EFAULT);
	CHECK(held() == 1);
	refuse(0, 0);
	wait_until_taken();
}

/* Arm's CPUs cache what the driver says they can, and some cannot combine writes. */
#ifdef __aarch64__
static const bool arm = true;
#else
static const bool arm;
#endif

/* What is no range of addresses does not reach the GPU driver, whose lists would be as long. */
static void test_wrong_ranges(void)
{
	uint64_t va = gpu_alloc(4 * GPU_PAGE), h, asked = stats().asked;
	/* x86: the GPU's BAR. Elsewhere a GPU may be coherent. */
	const uint64_t most = arm ? 1UL << 40 : stats().pages_total * GPU_PAGE;
	const struct { uint64_t va, size; } wrong[] = {
		{ 0, GPU_PAGE }, { va, 0 }, { va, UINT64_MAX }, { va, -va },
		{ -(uint64_t)GPU_PAGE + 1, 1 }, { va, 1UL << 63 }, { va, most + 1 }, { va + 1, most },
	};
	int fd = gdr_open();
	size_t i;

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK_ERR(try_pin(fd, wrong[i].va, wrong[i].size, &h), EINVAL);
	CHECK(stats().asked == asked);
	CHECK_ERR(try_pin(fd, va, most, &h), arm ? ENOMEM : EINVAL);
	CHECK(stats().asked == asked + !arm);	/* Arm: the user's limit */
}

/* A pinning has each GPU page that the range touches. */
static void test_pin_rounds(void)
{
	static const struct { uint64_t at, size, pages; } ranges[] = {
		{ 1, 1, 1 }, { GPU_PAGE - 1, 2, 2 }, { 0, 3 * GPU_PAGE + 1, 4 }, { GPU_PAGE, GPU_PAGE, 1 },
	};
	uint64_t va = gpu_alloc(4 * GPU_PAGE);
	struct gdrdrv_info_v2 got;
	int fd = gdr_open();
	size_t i;

	for (i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		got = info(fd, pin(fd, va + ranges[i].at, ranges[i].size));
		CHECK(got.va == va + ranges[i].at / GPU_PAGE * GPU_PAGE);
		CHECK(got.mapped_size == ranges[i].pages * GPU_PAGE);
	}
}

/* PIN_V2 has flags: one, of which the headers of 535 and 550 do not know. */
static void test_force_pcie(void)
{
	uint64_t before = stats().forced;
	/* Old callers do not clear the padding. */
	struct gdrdrv_pin_v2 p = { .addr = gpu_alloc(GPU_PAGE), .size = 4, .pad = 0xabcd };
	struct gdrdrv_get_attr can = { .attr = GDRDRV_ATTR_FORCE_PCIE, .val = 9 };
	int fd = gdr_open();

	CHECK(ioctl(fd, GDRDRV_IOC_ATTR, &can) == 0 && can.val <= 1);
	for (p.flags = 0; p.flags <= can.val; p.flags++) {
		CHECK(ioctl(fd, GDRDRV_IOC_PIN_V2, &p) == 0);
		CHECK(stats().forced == before + p.flags);
	}
	CHECK_ERR(ioctl(fd, GDRDRV_IOC_PIN_V2, &p), EINVAL);
}

static uint64_t now_us(void)
{
	struct timespec t;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

/* The time that the GPU driver took to pin, and the unit of it. Two clocks may differ. */
static void test_pin_time(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE), took;
	struct gdrdrv_info_v2 i;
	int fd = gdr_open();

	set_knob(NVIDIA_SIM_GET_DELAY, 20);
	took = now_us();
	i = info(fd, pin(fd, va, GPU_PAGE));
	took = now_us() - took;
	CHECK(i.tsc_khz > 0);
	i.tm_cycles = i.tm_cycles * 1000 / i.tsc_khz;
	CHECK(i.tm_cycles >= 5000 && i.tm_cycles <= 4 * took);
}

/* Each byte must be at its place, whether the pages are scattered or not. */
static void check_data(size_t size)
{
	uint64_t va = gpu_alloc(size), h;
	unsigned char *view = gpu_view(va, size);
	volatile uint32_t *p;
	int fd = gdr_open();
	size_t i;

	h = pin(fd, va, size);
	p = (volatile uint32_t *)map(fd, h, size);
	for (i = 0; i < size / 4; i += 1024)
		p[i] = i * 2654435761u;
	__sync_synchronize();
	for (i = 0; i < size / 4; i += 1024)
		CHECK(((volatile uint32_t *)view)[i] == (uint32_t)(i * 2654435761u));
	for (i = 511; i < size / 4; i += 1024)
		((volatile uint32_t *)view)[i] = ~i;
	__sync_synchronize();
	for (i = 511; i < size / 4; i += 1024)
		CHECK(p[i] == (uint32_t)~i);
	CHECK(munmap(view, size) == 0);
	CHECK(unpin(fd, h) == 0);
	gpu_free(va);
}

static void test_data(void)
{
	check_data(100 * GPU_PAGE);
	set_knob(NVIDIA_SIM_CONTIGUOUS, 1);
	check_data(1100 * GPU_PAGE);
}

/* The number of faults it takes to touch each page. */
static long faults_of(volatile unsigned char *p, size_t size)
{
	struct rusage before, after;
	size_t i;

	p[0] = 1;
	CHECK(getrusage(RUSAGE_SELF, &before) == 0);
	for (i = 0; i < size; i += 4096)
		p[i] = 1;
	CHECK(getrusage(RUSAGE_SELF, &after) == 0);
	return after.ru_minflt - before.ru_minflt;
}

/* Linux from 6.7 on protects any mapping; 7.2 refuses ours. An access to such a page ends. */
static void test_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 15 /* WP_ASYNC */ };
	int fd = gdr_open(), u = syscall(SYS_userfaultfd, O_CLOEXEC);
	uint64_t h = pin(fd, gpu_alloc(GPU_PAGE), GPU_PAGE);
	volatile unsigned char *p = map(fd, h, GPU_PAGE);
	struct uffdio_writeprotect wp = { { (uintptr_t)p, GPU_PAGE }, UFFDIO_WRITEPROTECT_MODE_WP };
	struct uffdio_register reg = { .range = wp.range, .mode = UFFDIO_REGISTER_MODE_WP };

	if (u < 0 || ioctl(u, UFFDIO_API, &api) || ioctl(u, UFFDIO_REGISTER, &reg))
		_exit(SKIPPED);
	CHECK(ioctl(u, UFFDIO_WRITEPROTECT, &wp) == 0);
	CHECK(read_faults(p) == SIGBUS);
	close(u);
	CHECK(read_faults(p) == 0);
}

/* A fault maps 2 MiB. In a locked mapping, or with map_whole=1, the first fault maps all. */
static void test_faults(void)
{
	const size_t size = 64 << 20;
	uint64_t va = gpu_alloc(size), h;
	volatile unsigned char *p;
	int fd = gdr_open();
	long n;

	h = pin(fd, va, size);
	n = faults_of(map(fd, h, size), size);
	if (is_on(PARAMETERS "map_whole"))
		CHECK(n < 10);
	else
		CHECK(n >= (long)(size >> 21) - 1 && n < 100);
	h = pin(fd, va, size);
	p = map_prot(fd, h, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_LOCKED);
	CHECK(p != MAP_FAILED);
	CHECK(faults_of(p, size) < 10);
	/* The mapping ends as any other does. */
	CHECK(unpin(fd, h) == 0);
	CHECK(is_fault(read_faults(p)) && is_fault(read_faults(p + size - 1)));
}

/* The line VmFlags of the mapping at p: each flag has a space on either side. */
static void vm_flags(const volatile void *p, char *line, int size)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long start, end, at = 0;

	CHECK(f);
	do {
		CHECK(fgets(line, size, f));
		if (sscanf(line, "%lx-%lx", &start, &end) == 2)
			at = start;
	} while (at != (uintptr_t)p || strncmp(line, "VmFlags:", 8) != 0);
	fclose(f);
}

/*
 * The mapping is not copied over fork, not grown, not dumped, not executable. It is I/O
 * memory. So it is for a program that may execute all that it reads.
 */
static void test_vma_flags(void)
{
	static const char *const want[] = { " io ", " pf ", " dc ", " de ", " dd ", " sh " };
	const int was = personality(0xffffffff);
	int fd = gdr_open(), round;
	uint64_t h = pin(fd, gpu_alloc(GPU_PAGE), GPU_PAGE);
	char flags[256];
	void *p;
	size_t i;

	for (round = 0; round < 2; round++) {
		CHECK(personality(was | (round ? READ_IMPLIES_EXEC : 0)) == was);
		p = (void *)map(fd, h, GPU_PAGE);
		CHECK(personality(was) >= 0);
		vm_flags(p, flags, sizeof(flags));
		for (i = 0; i < sizeof(want) / sizeof(want[0]); i++)
			CHECK(strstr(flags, want[i]));
		CHECK(!strstr(flags, " ex ") && !strstr(flags, " me "));
		CHECK(munmap(p, GPU_PAGE) == 0);
	}
}

/* A mapping cannot be split, nor grow, and moves whole. */
static void test_vma_operations(void)
{
	const size_t size = 4 * GPU_PAGE, page = getpagesize();
	uint64_t va = gpu_alloc(size), h;
	volatile unsigned char *p, *q;
	int fd = gdr_open();
	void *room;

	h = pin(fd, va, size);
	p = map(fd, h, size);
	p[0] = 1;
	p[size - 1] = 2;
	CHECK_ERR(munmap((void *)(p + page), page), EINVAL);
	CHECK_ERR(mprotect((void *)p, page, PROT_READ), EINVAL);
	CHECK_ERR(mprotect((void *)p, size, PROT_READ | PROT_EXEC), EACCES);
	CHECK_ERR(mremap((void *)p, size, 2 * size, MREMAP_MAYMOVE), EFAULT);
	CHECK(mremap((void *)p, 0, size, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK(p[0] == 1 && p[size - 1] == 2);

	room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(room != MAP_FAILED);
	q = mremap((void *)p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, room);
	CHECK(q == room);
	CHECK(read_faults(p) == SIGSEGV);
	CHECK(q[0] == 1 && q[size - 1] == 2);
	CHECK(info(fd, h).mapping_type == GDRDRV_MAPPING_WC);
	CHECK_ERR(try_map(fd, h, page), EINVAL);
	CHECK(unpin(fd, h) == 0);
	CHECK(is_fault(read_faults(q)));
}

/* An unpin ends its own mapping, all of it, touched or not. */
static void test_handles(void)
{
	enum { N = 64 };
	uint64_t va = gpu_alloc(4 * GPU_PAGE), h[N], end = 0;
	volatile unsigned char *p[N];
	int fd = gdr_open(), i;

	for (i = 0; i < N; i++) {
		const size_t size = (1 + i % 4) * GPU_PAGE;

		h[i] = pin(fd, va, size);
		CHECK(h[i] >= end);
		end = h[i] + size / getpagesize();
		p[i] = map(fd, h[i], size);
		if (i % 3)
			CHECK(!read_faults(p[i]));
	}
	for (i = 0; i < N; i += 2)
		CHECK(unpin(fd, h[i]) == 0);
	for (i = 0; i < N; i++) {
		CHECK((i % 2 == 0) == is_fault(read_faults(p[i])));
		CHECK((i % 2 == 0) == is_fault(read_faults(p[i] + (1 + i % 4) * GPU_PAGE - 1)));
		CHECK(unpin(fd, h[i]) == (i % 2 ? 0 : -1));
	}
}

/* A handle is valid only in its own file, and until it is unpinned. */
static void test_unknown_handle(void)
{
	static const uint64_t wild[] = { 0, 2, 1ULL << 63, UINT64_MAX };
	uint64_t va = gpu_alloc(GPU_PAGE), bytes[8];
	int fd = gdr_open(), fd2 = gdr_open();
	size_t i, c;

	CHECK(pin(fd, va, GPU_PAGE) == 1);
	for (i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		for (c = 1; c < 5; c++) {
			bytes[0] = wild[i];
			CHECK_ERR(ioctl(fd, all_codes[c], bytes), EINVAL);
		}
		CHECK_ERR(req_type(fd, wild[i], 1), EINVAL);
		CHECK(try_map(fd, wild[i], 4096) == MAP_FAILED);
	}
	CHECK_ERR(unpin(fd2, 1), EINVAL);
	CHECK(unpin(fd, 1) == 0);
	CHECK_ERR(unpin(fd, 1), EINVAL);
}

/* A mapping keeps the file, as a mapping of any file does, and the module. It ends by munmap. */
static void test_close_keeps_mappings(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE), h;
	volatile unsigned char *p;
	int fd = gdr_open(), fd2 = dup(fd);

	h = pin(fd, va, GPU_PAGE);
	pin(fd, va, GPU_PAGE);
	p = map(fd, h, GPU_PAGE);
	p[0] = 3;
	CHECK(close(fd2) == 0);
	CHECK(p[0] == 3);
	CHECK(close(fd) == 0);
	CHECK(p[0] == 3);
	CHECK(stats().pins == 2);
	CHECK(held() == 2);
	CHECK_ERR(syscall(SYS_delete_module, "gdrdrv", O_NONBLOCK), EAGAIN);
	CHECK(munmap((void *)p, GPU_PAGE) == 0);
	CHECK(stats().pins == 0);
	CHECK(held() == 0);
}

struct shared_fd {
	int fd;
	uint64_t handle;
	volatile unsigned char *p;
};

static void stranger(void *arg)
{
	struct shared_fd *s = arg;
	uint64_t buf[8] = { s->handle };
	size_t i;

	for (i = 0; i < NCODES; i++)
		CHECK_ERR(ioctl(s->fd, all_codes[i], buf), EACCES);
	CHECK_ERR(try_map(s->fd, s->handle, GPU_PAGE), EACCES);
	if (s->p)
		CHECK(read_faults(s->p) == SIGSEGV);
	close(s->fd);
}

static void test_fork(void)
{
	struct shared_fd s = { .fd = gdr_open() };

	s.handle = pin(s.fd, gpu_alloc(GPU_PAGE), GPU_PAGE);
	s.p = map(s.fd, s.handle, GPU_PAGE);
	s.p[9] = 5;
	CHECK(in_child(stranger, &s) == 0);
	CHECK(s.p[9] == 5);
	CHECK(unpin(s.fd, s.handle) == 0);
}

enum { NUMBER = 4000, FD = 100 };	/* kernels for small machines have 4096 numbers */

/* Pins, and ends. FD stays open. */
static void owner(void *arg)
{
	int fd = gdr_open();

	(void)arg;
	sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	CHECK(pin(fd, gpu_alloc(GPU_PAGE), GPU_PAGE) == 1);
	CHECK(dup2(fd, FD) == FD && close(fd) == 0);
}

/* Who has the file after its owner gets nothing by it, not even under the owner's number. */
static void test_number_comes_again(void)
{
	struct shared_fd s = { .fd = FD, .handle = 1 };

	CHECK(end_of(start_numbered(NUMBER, owner, NULL)) == 0);
	CHECK(in_child(stranger, &s) == 0);
	CHECK(stats().pins == 1 && held() == 1);
	CHECK(end_of(start_numbered(NUMBER, stranger, &s)) == 0);
	CHECK(stats().pins == 0 && held() == 0);
}

/* The bits of the page table that say who may do what, and how the CPU uses the memory. */
#ifdef __x86_64__
/* As Linux sets up x86's PAT, PWT alone is write-combining, and PCD is uncached. */
#define PTE_RW (1UL << 1)
#define PTE_USER (1UL << 2)
#define PTE_NX (1UL << 63)
#define PTE_MEMORY (1UL << 3 | 1UL << 4 | 1UL << 7)	/* PWT, PCD, PAT */
#define PTE_WC (1UL << 3)
#define PTE_DEVICE (1UL << 4)
#define PTE_UNCACHED PTE_DEVICE
#elif defined(__aarch64__)
/* Linux's numbers: 2 is normal memory that is not cached, 3 and 4 are nGnRnE and nGnRE. */
#define PTE_RW (1UL << 51)
#define PTE_USER (1UL << 6)
#define PTE_NX (1UL << 54)
#define PTE_MEMORY (7UL << 2)
#define PTE_WC (2UL << 2)
#define PTE_DEVICE (4UL << 2)
#define PTE_UNCACHED (3UL << 2)
#endif
#define PTE_CACHED 0UL
#define PTE_DATA (PTE_USER | PTE_RW | PTE_NX)	/* of the modules' mappings */

/*
 * Writes to a page of a mapping, and looks how it is there. The kernel shows that to no driver
 * without a GPL licence.
 */
static bool pte_is(volatile unsigned char *p, uint64_t want)
{
	struct nvidia_sim_pte e = { .addr = (uintptr_t)p };

	p[0] = 1;
	if (ioctl(sim, NVIDIA_SIM_PTE, &e) < 0)
		return errno == EOPNOTSUPP;
	return (e.flags & (PTE_DATA | PTE_MEMORY)) == want;
}

/* A mapping has the one type that the machine has for a BAR. */
static void test_mapping_types(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE), h;
	const bool device = is_on("/sys/module/nvidia/parameters/without_wc");
	const int is = device ? GDRDRV_MAPPING_DEVICE : GDRDRV_MAPPING_WC;
	int fd = gdr_open(), asked;
	void *p;

	for (asked = 0; asked < 2; asked++) {
		h = pin(fd, va, GPU_PAGE);
		CHECK(req_type(fd, h, GDRDRV_MAPPING_NONE) == 0);
		CHECK_ERR(req_type(fd, h, GDRDRV_MAPPING_CACHING), EOPNOTSUPP);
		CHECK_ERR(req_type(fd, h, GDRDRV_MAPPING_WC + GDRDRV_MAPPING_DEVICE - is), EOPNOTSUPP);
		CHECK_ERR(req_type(fd, h, UINT32_MAX), EINVAL);
		if (asked)
			CHECK(req_type(fd, h, is) == 0);
		p = try_map(fd, h, GPU_PAGE);
		CHECK(p != MAP_FAILED);
		CHECK(info(fd, h).mapping_type == (unsigned int)is);
		CHECK(pte_is(p, PTE_DATA | (device ? PTE_DEVICE : PTE_WC)));
		CHECK_ERR(req_type(fd, h, is), EBUSY);
		CHECK_ERR(req_type(fd, h, GDRDRV_MAPPING_CACHING), EBUSY);
		CHECK(munmap(p, GPU_PAGE) == 0);
		CHECK(req_type(fd, h, is) == 0);
		CHECK(unpin(fd, h) == 0);
	}
}

/* How many ranges the kernel maps write-combining. x86 alone has a list of them. */
static int wc_ranges(void)
{
#ifdef __x86_64__
	FILE *f = fopen("/sys/kernel/debug/x86/pat_memtype_list", "r");
	char line[256];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "write-combining") != NULL;
	fclose(f);
	return n;
#else
	return 0;
#endif
}

static void test_write_combining(void)
{
	uint64_t va = gpu_alloc(4 * GPU_PAGE), h, again;
	unsigned char *view = gpu_view(va, GPU_PAGE);
	int fd = gdr_open(), before = wc_ranges();
	volatile unsigned char *p;
	size_t i;

	/* The double's own view is uncached. So pte_is() can tell the two apart. */
	CHECK(pte_is(view, PTE_DATA | PTE_UNCACHED));
	CHECK(munmap(view, GPU_PAGE) == 0);
	h = pin(fd, va, 4 * GPU_PAGE);
	again = pin(fd, va, 4 * GPU_PAGE);
	p = map(fd, h, 4 * GPU_PAGE);
	for (i = 0; i < 4 * GPU_PAGE; i += 4096)
		CHECK(pte_is(p + i, PTE_DATA | PTE_WC));
	/* Each of the four pages is in the list once. Two neighbours may share a range. */
	CHECK(arm || (wc_ranges() > before && wc_ranges() <= before + 4));
	CHECK(unpin(fd, again) == 0);
	CHECK(arm || wc_ranges() > before);
	CHECK(unpin(fd, h) == 0);
	CHECK(wc_ranges() == before);
}

#ifdef __x86_64__
/*
 * A range that is reserved is a block of 64 KiB, 2 MiB or 64 MiB, at a multiple of its size.
 * The pages follow each other, but for one gap, so there are few blocks.
 */
static void check_blocks(uint64_t size)
{
	FILE *f = fopen("/sys/kernel/debug/x86/pat_memtype_list", "r");
	unsigned long long from, to, n, sum = 0;
	int ranges = 0, large = 0;
	char line[256];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		if (!strstr(line, "write-combining"))
			continue;
		CHECK(sscanf(line, "PAT: [mem %llx-%llx]", &from, &to) == 2);
		n = to - from;
		CHECK(n == 64 << 10 || n == 2 << 20 || n == 64 << 20);
		CHECK(from % n == 0);
		sum += n;
		ranges++;
		large += n == 64 << 20;
	}
	fclose(f);
	CHECK(sum == size && large && ranges < 260);
}

/* A page may be in a block of each size. */
static void check_nested(int fd, uint64_t va)
{
	enum { N = 64 };
	uint64_t h[N], large = pin(fd, va, N * GPU_PAGE);
	volatile unsigned char *all = map(fd, large, N * GPU_PAGE);
	size_t i;

	for (i = 0; i < N; i++)
		h[i] = pin(fd, va + i * GPU_PAGE, GPU_PAGE);
	for (i = 0; i < N; i++) {
		CHECK(pte_is(map(fd, h[i], GPU_PAGE), PTE_DATA | PTE_WC));
		CHECK(pte_is(all + i * GPU_PAGE, PTE_DATA | PTE_WC));
		CHECK(unpin(fd, h[i]) == 0);
	}
	CHECK(unpin(fd, large) == 0);
}

/* How many nodes of trees the kernel has. */
static long nodes(void)
{
	FILE *f = popen("awk '/^radix_tree_node / { print $2 }' /proc/slabinfo", "r");
	long n = 0;

	CHECK(fscanf(f, "%ld", &n) == 1 && !pclose(f));
	return n;
}

static void test_blocks(void)
{
	const size_t size = 200 << 20;
	int fd = gdr_open(), before = wc_ranges();
	volatile unsigned char *p;
	long count = nodes();
	uint64_t va, h;
	size_t i;

	/* Scattered pages share nodes; each of its own would be 576 B a page. */
	va = gpu_alloc(size);
	h = pin(fd, va, size);
	CHECK(nodes() - count < (long)(size / GPU_PAGE / 4));
	p = map(fd, h, size);
	for (i = 0; i < size; i += GPU_PAGE)
		CHECK(pte_is(p + i, PTE_DATA | PTE_WC));
	CHECK(unpin(fd, h) == 0);
	gpu_free(va);
	set_knob(NVIDIA_SIM_CONTIGUOUS, 1);
	va = gpu_alloc(size);
	h = pin(fd, va, size);
	map(fd, h, size);
	if (!before)
		check_blocks(size);
	CHECK(unpin(fd, h) == 0);
	check_nested(fd, va);
	CHECK(wc_ranges() == before);
}
#endif

/*
 * After ENOMEM an unpin can be made again. After anything else the driver has dropped the
 * references of the pinning: it must never be put again.
 */
static void failed_unpin(int fd, uint64_t va, int error)
{
	const bool again = error == ENOMEM;
	uint64_t h = pin(fd, va, GPU_PAGE), puts = stats().puts;
	void *p = (void *)map(fd, h, GPU_PAGE);
	int before = lost();

	refuse(ALL, error);
	CHECK_ERR(unpin(fd, h), error);
	CHECK(stats().puts == puts + 1);
	CHECK(is_fault(read_faults(p)));
	CHECK(munmap(p, GPU_PAGE) == 0);
	CHECK(held() == again && stats().pins == again);
	if (again) {
		CHECK(info(fd, h).mapped_size == GPU_PAGE);
		CHECK(info(fd, h).mapping_type == GDRDRV_MAPPING_NONE);
		CHECK(req_type(fd, h, GDRDRV_MAPPING_WC) == 0 || arm);
		CHECK_ERR(unpin(fd, h), ENOMEM);
		refuse(0, 0);
		CHECK(unpin(fd, h) == 0);
	}
	refuse(0, 0);
	CHECK_ERR(unpin(fd, h), EINVAL);
	CHECK(held() == 0 && stats().pins == 0);
	CHECK(stats().lost == !again && lost() == before + !again);
	set_knob(NVIDIA_SIM_STOP, 1);
}

/* The last close can say nothing to anybody. */
static void failed_close(uint64_t va, int error)
{
	const bool again = error == ENOMEM;
	int fd = gdr_open(), before = lost();

	pin(fd, va, GPU_PAGE);
	pin(fd, va, GPU_PAGE);
	refuse(1, error);
	close(fd);
	wait_until_taken();
	CHECK(stats().lost == !again && lost() == before + !again);
	set_knob(NVIDIA_SIM_STOP, 1);
}

static void test_failed_puts(void)
{
	static const int errors[] = { ENOMEM, EIO };
	uint64_t va = gpu_alloc(GPU_PAGE);
	int fd = gdr_open();
	size_t i;

	for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		failed_unpin(fd, va, errors[i]);
		failed_close(va, errors[i]);
	}
	CHECK(stats().lost == 0);
}

/*
 * A close puts each buffer once, and waits for no driver. A worker puts the rest again, each
 * once a round, until it is taken. None is lost, though its memory goes.
 */
static void test_refused_closes(void)
{
	enum { N = 200 };
	uint64_t va = gpu_alloc(GPU_PAGE), puts;
	int fd = gdr_open(), before = lost(), i;

	for (i = 0; i < N; i++)
		pin(fd, va, GPU_PAGE);
	refuse(ALL, ENOMEM);
	puts = stats().puts;
	close(fd);
	gpu_free(va);
	CHECK(held() == N && stats().pins == N && stats().puts >= puts + N);
	while (stats().puts < puts + 3 * N)
		usleep(1000);
	CHECK(held() == N);
	refuse(0, 0);
	wait_until_taken();
	CHECK(lost() == before);
}

/* Another process pins, and its GPU takes its time: until it is told. */
static void slow_pin(void *arg)
{
	(void)arg;
	sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	pin(gdr_open(), gpu_alloc(GPU_PAGE), GPU_PAGE);
	pause();
}

/* While one process pins, others pin, map, touch, unpin and close. */
static void test_pin_of_another(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE), h, asked;
	int fd = gdr_open();
	pid_t pid;

	h = pin(fd, va, GPU_PAGE);
	asked = stats().asked;
	set_knob(NVIDIA_SIM_GET_HOLD, 1);
	pid = start_child(slow_pin, NULL);
	while (stats().asked == asked)
		usleep(1000);
	pin(fd, va, GPU_PAGE);
	CHECK(!read_faults(map(fd, h, GPU_PAGE)));
	close(gdr_open());
	CHECK(unpin(fd, h) == 0);
	CHECK(held() == 1);
	set_knob(NVIDIA_SIM_GET_HOLD, 0);
	while (held() == 1)
		usleep(1000);
	CHECK(kill(pid, SIGKILL) == 0 && end_of(pid) == SIGKILL);
}

static void test_page_table_majors(void)
{
	uint64_t va = gpu_alloc(2 * GPU_PAGE), h;
	int fd = gdr_open();
	volatile unsigned char *p;
	unsigned int major;
	bool cached;

	for (major = 1; major <= 2; major++) {
		set_knob(NVIDIA_SIM_MAJOR, major);
		set_knob(NVIDIA_SIM_CACHEABLE, major == 2);
		h = pin(fd, va, GPU_PAGE);
		p = map(fd, h, GPU_PAGE);
		/* x86 cannot cache a device's memory, with or without the flag. */
		cached = arm && major == 2;
		CHECK(info(fd, h).mapping_type ==
		      (cached ? GDRDRV_MAPPING_CACHING : GDRDRV_MAPPING_WC));
		CHECK(pte_is(p, PTE_DATA | (cached ? PTE_CACHED : PTE_WC)));
		CHECK(unpin(fd, h) == 0);
	}
}

/* KiB of page tables that this process has. An unpin does not free them. */
static long page_tables(void)
{
	return number_in("/proc/self/status", "VmPTE: %lld");
}

static void *thread_reads(void *arg)
{
	read_faults(arg);
	return NULL;
}

#define LONG_SIZE (128UL << 20)

/* Whether a pinning ended in the middle of the fault that maps all of it. */
static bool ended_inside_fault(int fd)
{
	const long all = LONG_SIZE >> 21 << 2;	/* KiB */
	uint64_t va = gpu_alloc(LONG_SIZE), h = pin(fd, va, LONG_SIZE);
	long before = page_tables();
	pthread_t id;
	void *p;

	p = map_prot(fd, h, LONG_SIZE, PROT_READ, MAP_SHARED | MAP_LOCKED);
	CHECK(p != MAP_FAILED);
	CHECK(pthread_create(&id, NULL, thread_reads, p) == 0);
	while (page_tables() < before + all / 8)
		;
	CHECK(unpin(fd, h) == 0);
	CHECK(pthread_join(id, NULL) == 0);
	CHECK(is_fault(read_faults(p)));
	before = page_tables() - before;
	CHECK(munmap(p, LONG_SIZE) == 0);
	gpu_free(va);
	return before < all * 3 / 4;
}

/* An unpin does not wait until a fault has mapped all of a long mapping. */
static void test_end_inside_fault(void)
{
	int fd = gdr_open(), i;

	for (i = 0; i < 20; i++)
		if (ended_inside_fault(fd))
			return;
	CHECK(!"an unpin may come in the middle of a long fault");
}

static int log_fd = -1;

static void follow_log(void)
{
	log_fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	CHECK(log_fd >= 0 && lseek(log_fd, 0, SEEK_END) >= 0);
}

/* Whether the module has logged that line since the last call. */
static bool logged(const char *fmt, ...)
{
	char want[256] = ";gdrdrv: ", line[2048];
	bool found = false;
	va_list ap;
	ssize_t n;

	va_start(ap, fmt);
	vsnprintf(want + strlen(want), sizeof(want) - strlen(want) - 1, fmt, ap);
	va_end(ap);
	strcat(want, "\n");
	while ((n = read(log_fd, line, sizeof(line) - 1)) > 0 || errno == EPIPE) {
		line[n > 0 ? n : 0] = 0;
		found |= strstr(line, want) != NULL;
	}
	return found;
}

static void stranger_asks(void *arg)
{
	struct gdrdrv_version v;

	CHECK_ERR(ioctl(*(int *)arg, GDRDRV_IOC_VERSION, &v), EACCES);
}

/* Each refusal has its errno, and its reason in the log, where info_enabled is set. */
static void check_reasons(int fd, uint64_t va)
{
	const bool on = is_on(PARAMETERS "info_enabled");
	struct gdrdrv_pin_v2 flags = { .addr = va, .size = 1, .flags = 6 };
	struct gdrdrv_pin token = { .addr = va, .size = 1, .p2p_token = 1 };
	struct gdrdrv_pin space = { .addr = va, .size = 1, .va_space = 0xfe00 };
	struct gdrdrv_get_attr attr = { .attr = 9 };
	uint64_t h = pin(fd, va, GPU_PAGE), inside = pin(fd, va + 1, 1), no;
	void *p;

#define LOGS(call, error, ...) do {					\
	CHECK_ERR(call, error);						\
	CHECK(logged(__VA_ARGS__) == on);				\
} while (0)
	LOGS(ioctl(fd, _IO(0xDB, 7), NULL), EINVAL, "0xdb07 is no request of gdrdrv");
	LOGS(ioctl(fd, _IO(0xDA, 9), NULL), ENOTTY, "unknown request 0xda09");
	LOGS(ioctl(fd, GDRDRV_IOC_ATTR, &attr), EINVAL, "there is no attribute 9");
	LOGS(req_type(fd, h, 4), EINVAL, "there is no mapping type 4");
	LOGS(req_type(fd, h, GDRDRV_MAPPING_CACHING), EOPNOTSUPP, "mapping type 2: the buffer cannot have it");
	LOGS(try_pin(fd, va, 0, &no), EINVAL, "0 bytes at %#llx are no range of addresses", (unsigned long long)va);
	LOGS(try_pin(fd, va, 4 * GPU_PAGE, &no), EINVAL, "the GPU driver refused to pin: -22");
	set_knob(NVIDIA_SIM_FAIL_GET, EIO);
	LOGS(try_pin(fd, va, 1, &no), EIO, "the GPU driver refused to pin: -5");
	set_knob(NVIDIA_SIM_FAIL_GET, 524);	/* ENOTSUPP is the kernel's own */
	LOGS(try_pin(fd, va, 1, &no), EOPNOTSUPP, "the GPU driver refused to pin: -524");
	LOGS(ioctl(fd, GDRDRV_IOC_PIN_V2, &flags), EINVAL, "flags 0x6 are not supported");
	LOGS(ioctl(fd, GDRDRV_IOC_PIN, &token), EINVAL, "persistent mappings take no token");
	LOGS(ioctl(fd, GDRDRV_IOC_PIN, &space), EINVAL, "persistent mappings take no token");
	LOGS(unpin(fd, h + 1), EINVAL, "no buffer of this file has the handle %#llx", (unsigned long long)h + 1);
	LOGS(req_type(fd, 0, 1), EINVAL, "no buffer of this file has the handle 0x0");
	LOGS(req_type(fd, h + 3, 1), EINVAL, "no buffer of this file has the handle %#llx", (unsigned long long)h + 3);
	LOGS(map_prot(fd, h, GPU_PAGE, PROT_READ, MAP_PRIVATE), EINVAL, "a mapping must be shared");
	LOGS(map_prot(fd, h, GPU_PAGE, PROT_READ | PROT_EXEC, MAP_SHARED), EPERM, "a mapping cannot be executed");
	LOGS(try_map(fd, inside, GPU_PAGE), EINVAL, "a buffer must begin on a 64 KiB boundary to be mapped");
	LOGS(try_map(fd, h, GPU_PAGE + 1), EINVAL, "the mapping is longer than the buffer");
	p = (void *)map(fd, h, GPU_PAGE);
	LOGS(try_map(fd, h, GPU_PAGE), EINVAL, "the buffer is mapped already");
	LOGS(req_type(fd, h, GDRDRV_MAPPING_WC), EBUSY, "mapping type 1: the buffer is mapped");
	CHECK(munmap(p, GPU_PAGE) == 0);
	CHECK(in_child(stranger_asks, &fd) == 0);
	CHECK(logged("process %d did not open this file", child_was) == on);
	refuse(1, ENOMEM);
	LOGS(unpin(fd, h), ENOMEM, "the GPU driver has no memory to unpin: unpin again");
	LOGS(try_map(fd, h, GPU_PAGE), EINVAL, "the buffer is being unpinned");
	gpu_free(va);
	CHECK(unpin(fd, h) == 0 && unpin(fd, inside) == 0);
}

/* What nobody asked for is an error, and always in the log. */
static void check_errors(int fd, uint64_t va)
{
	uint64_t h;

#define BAD(knob, value, ...) do {					\
	set_knob(knob, value);						\
	CHECK_ERR(try_pin(fd, va, 2 * GPU_PAGE, &h), EINVAL);		\
	CHECK(logged(__VA_ARGS__));					\
} while (0)
	BAD(NVIDIA_SIM_BAD_VERSION, 1, "page table version 0x1 is neither 1.x nor 2.x: update gdrdrv");
	BAD(NVIDIA_SIM_BAD_VERSION, 0x30002, "page table version 0x30002 is neither 1.x nor 2.x: update gdrdrv");
	BAD(NVIDIA_SIM_BAD_SIZE, 3, "GPU page size type 2 is not 64 KiB");
	BAD(NVIDIA_SIM_BAD_ENTRIES, 1, "3 GPU pages came where 2 were asked for");
	BAD(NVIDIA_SIM_BAD_ENTRIES, -1, "1 GPU pages came where 2 were asked for");
	BAD(NVIDIA_SIM_BAD_ADDRESS, 512, "a GPU page is not aligned to the host's page");
	h = pin(fd, va, 2 * GPU_PAGE);
	refuse(1, EIO);
	CHECK_ERR(unpin(fd, h), EIO);
	CHECK(logged("128 KiB of GPU memory stay pinned until the GPU is reset"));
	set_knob(NVIDIA_SIM_STOP, 1);
}

/* dbg_enabled logs each call and its answer. Each place logs 10 lines in 5 s. */
static void check_calls(uint64_t va)
{
	int fd = gdr_open();
	uint64_t h;

	CHECK(logged("gdr_open: opened by %d", getpid()));
	CHECK_ERR(ioctl(fd, _IO(0xDA, 8), NULL), ENOTTY);
	CHECK(logged("gdr_ioctl: request 0xda08 of %d: -25", getpid()));
	h = pin(fd, va, 3);
	CHECK(logged("gdr_mr_pin: handle %#llx: 3 bytes", (unsigned long long)h));
	CHECK_ERR(try_map(fd, h + 1, GPU_PAGE), EINVAL);
	CHECK(logged("gdr_mmap: mmap of %#llx by %d: -22", (unsigned long long)h + 1, getpid()));
	close(fd);
	CHECK(logged("gdr_release: the file of %d ends", getpid()));
}

/* It comes first: after many of one kind in 5 s the kernel drops lines. */
static void test_log(void)
{
	uint64_t va = gpu_alloc(2 * GPU_PAGE);
	int fd;

	follow_log();
	check_calls(va);
	fd = gdr_open();
	check_errors(fd, va);
	check_reasons(fd, va);
}

static void unload(void)
{
	int tries = 0;

	while (syscall(SYS_delete_module, "gdrdrv", O_NONBLOCK) < 0) {
		CHECK(errno == EAGAIN);
		CHECK(++tries < 60000);	/* a minute: nobody gives the reference back */
		usleep(1000);
	}
}

/*
 * The GPU driver has refused what a process left. Unloading waits for it, and loses what is
 * left after 3 s. -u N: it refuses N times; all: each time.
 */
static void test_unload(void)
{
	uint64_t va = gpu_alloc(GPU_PAGE);
	int fd = gdr_open();

	follow_log();
	pin(fd, va, GPU_PAGE);
	pin(fd, va, GPU_PAGE);
	refuse(unload_failures, ENOMEM);
	close(fd);
	CHECK(unload_failures == 0 || held() > 0);
	unload();
	CHECK(logged("64 KiB of GPU memory stay pinned until the GPU is reset") == (unload_failures == ALL));
	CHECK(stats().pins == (unload_failures == ALL ? 2 : 0));
	refuse(0, 0);
	set_knob(NVIDIA_SIM_STOP, 2);
}

/* Pins until memory runs out. Returns how many pinnings there were. */
static uint64_t pin_all(int fd, uint64_t va, uint64_t size)
{
	uint64_t n = 0, h;

	while (!try_pin(fd, va, size, &h)) {
		n++;
		CHECK(n <= 10000);
	}
	CHECK(errno == ENOMEM);
	return n;
}

static void another_user_pins(void *arg)
{
	(void)arg;
	CHECK(setuid(1000) == 0);
	sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	pin(gdr_open(), gpu_alloc(GPU_PAGE), GPU_PAGE);
}

/*
 * The limit of one user, through two files. It is no other user's. The line that the user met it
 * comes once, and again when the user had nothing pinned.
 */
static void check_limit(uint64_t va, uint64_t size, uint64_t most)
{
	const char *const line = "user 0 meets a limit: see max_pins_per_user and max_mib_per_user";
	int fd = gdr_open(), fd2 = gdr_open();

	CHECK(pin_all(fd, va, size) == most && logged(line));
	CHECK(held() == (int)most && stats().pins == most);
	CHECK(pin_all(fd2, va, size) == 0 && !logged(line));
	CHECK(in_child(another_user_pins, NULL) == 0);
	CHECK(unpin(fd, 1) == 0);
	CHECK(pin_all(fd2, va, size) == 1);
	close(fd);
	CHECK(pin_all(fd2, va, size) == most - 1);
	close(fd2);
}

static void test_limits(void)
{
	const size_t size = 64 << 20;
	uint64_t va = gpu_alloc(size), h;
	const uint64_t most = number_in(PARAMETERS "max_mib_per_user", "%lld") / 64;
	int fd = gdr_open(), i;

	follow_log();
	check_limit(va, 1, number_in(PARAMETERS "max_pins_per_user", "%lld"));
	check_limit(va, size, most);
	/* Failed pins do not count, nor use up mmap offsets. */
	for (i = 0; i < 100; i++)
		CHECK_ERR(try_pin(fd, va + size, size, &h), EINVAL);
	CHECK(pin(fd, va, GPU_PAGE) == 1);
	CHECK(unpin(fd, 1) == 0);
	CHECK(pin_all(fd, va, size) == most);
}

static unsigned int rnd(unsigned int *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	*s ^= *s << 5;
	return *s;
}

/* Mostly one of the last that were pinned, by any thread. */
static atomic_ullong last_handle;

static uint64_t some_handle(unsigned int *s)
{
	return rnd(s) % 4 ? last_handle - rnd(s) % 3 * (GPU_PAGE / 4096) : rnd(s) % 2048;
}

/* One random call, mostly with some valid arguments. */
static void fuzz_step(int fd, uint64_t va, unsigned int *s)
{
	union {
		uint64_t u64[8];
		uint32_t u32[16];
	} arg;
	static __thread volatile unsigned char *maps[16];
	unsigned int i = rnd(s) % 16, r = rnd(s) % 32;
	size_t len = (rnd(s) % 5) * 4096 * (1 + rnd(s) % 16);
	volatile unsigned char *p = maps[i];

	for (size_t k = 0; k < 8; k++)
		arg.u64[k] = rnd(s) % 4 ? rnd(s) % 2048 :
					  (uint64_t)rnd(s) << (rnd(s) % 33);
	arg.u64[0] = some_handle(s);
	switch (r) {
	case 0 ... 7:
		arg.u64[0] = va + rnd(s) % 3 * 4096 * (rnd(s) % 33);
		arg.u64[1] = rnd(s) % 300000;
		arg.u64[2] = 0;
		arg.u64[3] = 0;
		if (ioctl(fd, r % 2 ? GDRDRV_IOC_PIN : GDRDRV_IOC_PIN_V2, &arg) == 0)
			last_handle = arg.u64[r % 2 ? 4 : 3];
		break;
	case 8 ... 14:
		p = try_map(fd, some_handle(s), len);
		if (p != MAP_FAILED) {
			if (maps[i])
				munmap((void *)maps[i], 4096 * 5 * 16);
			maps[i] = p;
		}
		break;
	case 15:
		if (p)
			mremap((void *)p, len, rnd(s) % 65536, rnd(s) % 8);
		break;
	case 16:
		if (p)
			munmap((void *)(p + rnd(s) % 4 * 4096), len);
		break;
	case 17:
		if (p)
			mprotect((void *)p, len, rnd(s) % 8);
		break;
	case 18:
		if (p)
			madvise((void *)p, len, rnd(s) % 26);
		break;
	case 19:
	case 20:
		if (p)
			read_faults(p);
		break;
	case 21:
		/* The module's numbers with other sizes and directions, or any numbers. */
		ioctl(fd, rnd(s) % 4 ? rnd(s) << 16 | GDRDRV_IOC << 8 | rnd(s) % 12 :
				       rnd(s), &arg);
		break;
	case 23:
		if (p)
			mmap((void *)p, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
			     (off_t)some_handle(s) * getpagesize());
		break;
	case 24:
		if (p)
			syscall(SYS_remap_file_pages, p, len, 0, some_handle(s), 0);
		break;
	case 25:
		close(dup(fd));
		break;
	case 26 ... 28:
		unpin(fd, some_handle(s));
		break;
	case 22:
		ioctl(fd, all_codes[rnd(s) % NCODES],
		      (void *)(uintptr_t)(rnd(s) * (uint64_t)rnd(s)));
		break;
	default:
		ioctl(fd, all_codes[rnd(s) % NCODES], &arg);
	}
}

static atomic_int fuzz_fd;
static uint64_t fuzz_va;

static void *thread_fuzzes(void *arg)
{
	unsigned int s = *(unsigned int *)arg * 40503u | 1;
	int i;

	for (i = 0; i < fuzz_rounds / 2; i++)
		fuzz_step(fuzz_fd, fuzz_va, &s);
	return NULL;
}

/* Two threads make the calls, by the same file, while the memory and the file come and go. */
static void fuzzer(void *arg)
{
	unsigned int s = *(unsigned int *)arg | 1;
	pthread_t id;
	int i;

	alarm(HANG_SECONDS + fuzz_rounds / 100);
	sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	fuzz_va = gpu_alloc(32 * GPU_PAGE);
	fuzz_fd = gdr_open();
	CHECK(pthread_create(&id, NULL, thread_fuzzes, arg) == 0);
	/* An munmap that is too long must not hit the thread's stack, which lies above. */
	CHECK(mmap(NULL, 1UL << 36, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		   -1, 0) != MAP_FAILED);
	for (i = 0; i < fuzz_rounds / 2; i++) {
		fuzz_step(fuzz_fd, fuzz_va, &s);
		if (rnd(&s) % 512 == 0) {
			struct nvidia_sim_alloc a = { .size = 32 * GPU_PAGE, .va = fuzz_va };

			gpu_free(a.va);
			while (ioctl(sim, NVIDIA_SIM_ALLOC, &a))
				;
		}
		if (rnd(&s) % 256 == 0) {
			close(fuzz_fd);
			fuzz_fd = gdr_open();
		}
	}
}

/* Now and then the GPU driver fails or waits. */
static void turn_knobs(void *arg)
{
	static const struct { unsigned int knob, most; } knobs[] = {
		{ NVIDIA_SIM_FAIL_GET, EIO }, { NVIDIA_SIM_FAIL_PUT, ENOMEM },
		{ NVIDIA_SIM_GET_DELAY, 2 },
		{ NVIDIA_SIM_PUT_DELAY, 2 }, { NVIDIA_SIM_BAD_SIZE, 4 },
		{ NVIDIA_SIM_BAD_ENTRIES, 1 }, { NVIDIA_SIM_CONTIGUOUS, 1 }, { NVIDIA_SIM_STOP, 1 },
	};
	unsigned int s = *(unsigned int *)arg | 1, i;

	for (;;) {
		i = rnd(&s) % (sizeof(knobs) / sizeof(knobs[0]));
		set_knob(knobs[i].knob, rnd(&s) % 2 * (rnd(&s) % (knobs[i].most + 1)));
		usleep(rnd(&s) % 2000);
	}
}

/* Several processes make the fuzzer's calls at once, over such a driver. */
static void test_storm(void)
{
	enum { N = 4 };
	unsigned int s = seed * 40503u, knob;
	pid_t pid[N + 1];
	int i, status;

	for (i = 0; i <= N; i++) {
		s = rnd(&s);
		pid[i] = start_child(i < N ? fuzzer : turn_knobs, &s);
	}
	for (i = 0; i <= N; i++) {
		if (i == N)
			CHECK(kill(pid[i], SIGKILL) == 0);
		status = end_of(pid[i]);
		/* A child may have unmapped its own stack. It must not have hung. */
		if (i < N && WIFSIGNALED(status))
			CHECK(WTERMSIG(status) != SIGALRM && WTERMSIG(status) != SIGKILL);
	}
	for (knob = 0; knob < NVIDIA_SIM_KNOBS; knob++)
		set_knob(knob, 0);
	set_knob(NVIDIA_SIM_STOP, 1);
	wait_until_taken();
}

static void test_kill(void)
{
	unsigned int s = seed * 77 + 1, v;
	int before = wc_ranges(), i, status;
	pid_t pid;

	for (i = 0; i < kills; i++) {
		v = rnd(&s);
		pid = start_child(fuzzer, &v);
		while (!stats().allocs)
			usleep(100);
		usleep(rnd(&s) % 8000);
		CHECK(kill(pid, SIGKILL) == 0);
		status = end_of(pid);
		/* It may have unmapped its own code or stack earlier. */
		CHECK(WIFSIGNALED(status) || !status);
		CHECK(held() == 0 && stats().pins == 0 && wc_ranges() == before);
		CHECK(stats().allocs == 0 && stats().pages_free == stats().pages_total);
	}
}

/* Makes this thread's n-th allocation from now on fail. 0: none fails. */
static void fail_nth(int fd, int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", n);
	CHECK(pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
}

/* All calls of a pinning's life. Whether the n-th allocation failed. */
static bool life_with_fault(int nth, uint64_t va, int n)
{
	void *p = MAP_FAILED;
	char text[16] = "";
	bool lives, reached;
	uint64_t h;
	int fd, err;

	fail_nth(nth, n);
	fd = open(DEV, O_RDWR | O_CLOEXEC);
	lives = fd >= 0 && !try_pin(fd, va, 4 * GPU_PAGE, &h) &&
		(p = try_map(fd, h, 4 * GPU_PAGE)) != MAP_FAILED &&
		!read_faults((unsigned char *)p + GPU_PAGE) && !unpin(fd, h);
	err = errno;
	CHECK(pread(nth, text, sizeof(text) - 1, 0) > 0);
	fail_nth(nth, 0);
	reached = atoi(text) == 0;
	CHECK(lives || (err == ENOMEM && reached));
	if (p != MAP_FAILED)
		munmap(p, 4 * GPU_PAGE);
	if (fd >= 0)
		close(fd);
	CHECK(held() == 0 && stats().pins == 0);
	return reached;
}

/*
 * Each allocation of the kernel on the way fails once. The call fails with ENOMEM or
 * succeeds, and leaves nothing behind.
 */
static void test_allocation_failures(void)
{
	uint64_t va = gpu_alloc(4 * GPU_PAGE);
	int nth = open("/proc/thread-self/fail-nth", O_RDWR), n = 0;

	if (nth < 0)
		_exit(SKIPPED);
	while (life_with_fault(nth, va, n + 1))
		n++;
	printf("# %d allocations failed in turn\n", n);
	CHECK(n > 10);
}

struct test {
	const char *name;
	void (*run)(void);
};

#define T(name) { #name, test_##name }
static const struct test tests[] = {
	T(log), T(old_libraries), T(bad_pointers), T(wrong_ranges), T(pin_rounds), T(force_pcie),
	T(pin_time), T(data), T(faults), T(userfaultfd), T(vma_flags), T(vma_operations),
	T(handles), T(unknown_handle), T(close_keeps_mappings), T(fork), T(number_comes_again),
	T(mapping_types), T(write_combining),
#ifdef __x86_64__
	T(blocks),
#endif
	T(failed_puts), T(refused_closes), T(pin_of_another), T(page_table_majors),
	T(end_inside_fault), T(limits), T(storm), T(allocation_failures), T(kill),
};
#define NTESTS (sizeof(tests) / sizeof(tests[0]))

/* What the tests hold the module to: -l prints it. */
static const char *const promises[] = {
	"old_libraries: requests and structs are those of old binaries, byte for byte",
	"log bad_pointers unknown_handle allocation_failures: what is wrong is refused, and nothing is left pinned",
	"wrong_ranges: what is no range, or larger than the BAR, does not reach the GPU driver",
	"log: the log has the reason of each refusal where info_enabled is set, each call where dbg_enabled is, and each error",
	"pin_time: the time of a pin, in cycles of the clock whose kHz are told",
	"failed_puts: an unpin that the GPU driver refused with ENOMEM can be made again; after another error nothing is put again",
	"refused_closes: a close waits for no driver that refuses; a worker puts until all is taken",
	"kmod_test -u N: unloading waits 3 s for the worker, and loses the rest",
	"data pin_rounds: each byte is at its place",
	"faults: a fault brings in 2 MiB, or all of a mapping that is locked or where map_whole is set",
	"userfaultfd: a page that it protects raises SIGBUS, and no endless fault",
	"end_inside_fault: a pinning can end in the middle of a long fault",
	"write_combining vma_flags: the mapping is write-combining in x86's list (pat_memtype_list) and in the page table, not executable, and no debugger's",
	"write_combining blocks: mappings of the same pages share their entry in the list, and neighbours have few (x86); scattered ones share the nodes of a tree",
	"mapping_types page_table_majors: on arm64 a mapping is device memory on the machines that need it, and cached where the driver says it can be; another wish is EOPNOTSUPP",
	"failed_puts: a buffer whose unpin was refused has no mapping to INFO, REQ_MAPPING_TYPE and mmap",
	"limits: a user pins so much and no more, which is no other user's loss",
	"fork number_comes_again: only the opener may use a file: not a child, nor a later process of its number",
	"vma_operations storm: mremap, mprotect, madvise, a partial munmap, a mapping over it",
	"handles: an unpin ends its own mapping, in any order",
	"pin_of_another: while another process pins, nothing waits",
	"close_keeps_mappings: a mapping holds the file, and the module",
	"kill: a process that dies anywhere leaves nothing",
	"storm: any calls, in any order, from several threads and processes, over a driver that fails and waits now and then",
};

static void run_one(void *arg)
{
	const struct test *t = arg;
	unsigned int knob;

	alarm(HANG_SECONDS + kills + fuzz_rounds / 50);
	catch_faults();
	/* The parent's file belongs to the parent. */
	close(sim);
	sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	CHECK(sim >= 0);
	for (knob = 0; knob < NVIDIA_SIM_KNOBS; knob++)
		set_knob(knob, 0);
	t->run();
}

/* A driver that fails may have lost some for good. */
static bool nothing_left(uint64_t misuse, int losses, const char *test)
{
	const bool fails = !strcmp(test, "failed_puts") || !strcmp(test, "log") || !strcmp(test, "storm");
	struct nvidia_sim_stats s = stats();

	if (!s.allocs && !s.pins && !s.lost && s.pages_free == s.pages_total &&
	    s.misuse == misuse && held() == 0 && (fails || lost() == losses))
		return true;
	printf("# left: %llu allocations, %llu page tables, %llu of %llu pages free, %llu misuses, %d held\n",
	       (unsigned long long)s.allocs, (unsigned long long)s.pins,
	       (unsigned long long)s.pages_free,
	       (unsigned long long)s.pages_total,
	       (unsigned long long)(s.misuse - misuse), held());
	return false;
}

int main(int argc, char **argv)
{
	const struct test unload = { "unload", test_unload };
	const char *only = NULL;
	int kmsg, opt, status, losses, n = 0, failed = 0;
	size_t i;

	while ((opt = getopt(argc, argv, "lt:k:f:s:u:")) != -1) {
		switch (opt) {
		case 'l':
			for (i = 0; i < NTESTS; i++)
				puts(tests[i].name);
			for (i = 0; i < sizeof(promises) / sizeof(promises[0]); i++)
				puts(promises[i]);
			return 0;
		case 't':
			only = optarg;
			break;
		case 'k':
			kills = atoi(optarg);
			break;
		case 'f':
			fuzz_rounds = atoi(optarg);
			break;
		case 'u':
			unload_failures = strcmp(optarg, "all") ? atoi(optarg) : ALL;
			break;
		case 's':
			seed = strtoul(optarg, NULL, 0);
			break;
		default:
			return 2;
		}
	}
	sim = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	kmsg = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
	if (sim < 0 || kmsg < 0) {
		perror(sim < 0 ? NVIDIA_SIM_DEVICE : "/dev/kmsg");
		return 2;
	}
	if (unload_failures >= 0)
		return in_child(run_one, (void *)&unload) ? 1 : 0;
	for (i = 0; i < NTESTS; i++) {
		uint64_t misuse = stats().misuse;
		bool ok, skipped;

		if (only && strcmp(only, tests[i].name) != 0)
			continue;
		dprintf(kmsg, "kmod_test: %s\n", tests[i].name);
		losses = lost();
		status = in_child(run_one, (void *)&tests[i]);
		skipped = WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
		if (status && !skipped)
			printf("# wait status %#x\n", status);
		ok = nothing_left(misuse, losses, tests[i].name) && (status == 0 || skipped);
		failed += !ok;
		printf("%sok %d - %s%s\n", ok ? "" : "not ", ++n, tests[i].name,
		       skipped ? " # SKIP this kernel lacks what it takes" : "");
		fflush(stdout);
	}
	printf("1..%d\n", n);
	return failed ? 1 : n ? 0 : 2;
}
