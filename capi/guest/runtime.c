// SPDX-License-Identifier: MIT
/*
 * runtime.c - starts the Go runtime, and makes ready what it needs. It knows Go's insides:
 * the build ends where a Go differs.
 *
 * 1. A runtime that does not get what it needs ends the process. So we get all of it
 *    first, or try whether it can be had.
 * 2. Its threads are made before it asks for them.
 * 3. A runtime does not survive fork(): its other threads are gone, with all that they
 *    held. But its whole state is in this object's variables and in memory that no child
 *    inherits. So a child puts the variables back to their values before the first start,
 *    and starts the runtime again.
 * 4. The linker has the runtime's C call the functions here instead of the C library's.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include "enter.h"
#include "log.h"
#include "reserve.h"
#include "threads.h"

#include <elf.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)

/*
 * The runtime's entry, which is no longer in .init_array. The linker makes the symbol from
 * the section's name. The weak symbols are absent in a build without Go (go vet, the
 * tests of the C side).
 */
typedef void (*go_entry_fn)(int argc, char **argv, char **envp);
extern const go_entry_fn __start_gdr_go_entry[] __attribute__((weak));

/* All variables of Go code. Go's linker gives their bounds these names. */
extern char go_data[] __asm__("runtime.data") __attribute__((weak));
extern char go_edata[] __asm__("runtime.edata") __attribute__((weak));
extern char go_noptrdata[] __asm__("runtime.noptrdata") __attribute__((weak));
extern char go_enoptrdata[] __asm__("runtime.enoptrdata") __attribute__((weak));
extern char go_bss[] __asm__("runtime.bss") __attribute__((weak));
extern char go_ebss[] __asm__("runtime.ebss") __attribute__((weak));
extern char go_noptrbss[] __asm__("runtime.noptrbss") __attribute__((weak));
extern char go_enoptrbss[] __asm__("runtime.enoptrbss") __attribute__((weak));
extern char __start_gdr_go_module[] __attribute__((weak));
extern char __stop_gdr_go_module[] __attribute__((weak));

/* The variables of runtime/cgo's C, in a section of their own. */
extern char __start_gdr_go_c[] __attribute__((weak));
extern char __stop_gdr_go_c[] __attribute__((weak));

/* The goroutine of a thread that is inside Go, else NULL. */
#ifdef __x86_64__
#define GO_G "runtime.tlsg"
#else
#define GO_G "runtime.tls_g"
#endif
extern __thread void *go_g __asm__(GO_G) __attribute__((weak, tls_model("initial-exec")));

/* In the place of the C library's functions, for runtime/cgo. */
int gdr_go_pthread_key_create(pthread_key_t *key, void (*destructor)(void *));
int gdr_go_pthread_sigmask(int how, const sigset_t *set, sigset_t *was);
int gdr_go_pthread_attr_getstacksize(const pthread_attr_t *attr, size_t *size);
int gdr_go_pthread_getattr_np(pthread_t id, pthread_attr_t *attr);
int gdr_go_pthread_attr_getstack(const pthread_attr_t *attr, void **addr, size_t *size);
void *gdr_go_mmap(void *addr, size_t len, int prot, int flags, int fd, long off);
void *gdr_go_malloc(size_t len);
void gdr_go_free(void *mem);

#pragma GCC visibility pop

/* The C library's functions. */

/*
 * The key would bind an M to each host thread that ever called. Without it a thread gives
 * its M back after each call.
 */
int gdr_go_pthread_key_create(pthread_key_t *key, void (*destructor)(void *))
{
	(void)key;
	(void)destructor;
	return EAGAIN;
}

/*
 * runtime/cgo holds all signals while it makes a thread. Ours have masks of their own, and
 * a forced SIGSYS that is held kills the process.
 */
int gdr_go_pthread_sigmask(int how, const sigset_t *set, sigset_t *was)
{
	(void)how;
	(void)set;
	if (was)
		sigemptyset(was);
	return 0;
}

/* A thread that was made here has more stack than Go counts on. */
int gdr_go_pthread_attr_getstacksize(const pthread_attr_t *attr, size_t *size)
{
	(void)attr;
	*size = 65536;
	return 0;
}

/*
 * To ask where a host thread's stack ends takes a file. Where the answer is nothing, Go
 * counts on 32 KiB.
 */
int gdr_go_pthread_getattr_np(pthread_t id, pthread_attr_t *attr)
{
	(void)id;
	(void)attr;
	return 0;
}

int gdr_go_pthread_attr_getstack(const pthread_attr_t *attr, void **addr, size_t *size)
{
	(void)attr;
	*addr = NULL;
	*size = 0;
	return 0;
}

/* The memory. */

void *gdr_go_mmap(void *addr, size_t len, int prot, int flags, int fd, long off)
{
	(void)fd;
	(void)off;
	return gdr_reserve_mmap(addr, len, prot, flags);
}

/*
 * runtime/cgo writes down here what a new thread is to do, and ends the process if there is
 * no memory for it. The host's malloc may have none, or be in the middle of something.
 */
#define REQUEST_BYTES 64

static struct request {
	_Alignas(16) char mem[REQUEST_BYTES];
	_Atomic bool taken;
} requests[GDR_THREADS_MAX];

void *gdr_go_malloc(size_t len)
{
	for (size_t i = 0; len <= REQUEST_BYTES && i < GDR_THREADS_MAX; i++)
		if (!atomic_exchange(&requests[i].taken, true))
			return requests[i].mem;
	return NULL;
}

void gdr_go_free(void *mem)
{
	struct request *r = mem;	/* its first member */

	if (r)
		atomic_store(&r->taken, false);
}

/*
 * What the start of the runtime takes, and some more. On amd64 with Go 1.26 that is 1150
 * MiB of address space, 45 MiB of it writable, and 60 mappings.
 *
 * Host threads that allocate meanwhile need address space too: the C library takes 64 MiB
 * for each. Two such threads once left too little.
 */
#define SPACE_BYTES (1536ul << 20)
#define WRITABLE_BYTES (64ul << 20)
#define MAPS 64

static int try_maps(char *mem, size_t page)
{
	for (size_t i = 0; i < MAPS; i++)
		if (mprotect(mem + 2 * i * page, page, PROT_READ))
			return errno;
	return 0;
}

static int try_memory(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *space, *writable;
	int rc = 0;

	space = mmap(NULL, SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED)
		return errno;
	writable = gdr_map_memory(NULL, WRITABLE_BYTES, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS);
	if (writable == MAP_FAILED)
		rc = errno;
	else
		rc = try_maps(space, page);
	if (writable != MAP_FAILED)
		munmap(writable, WRITABLE_BYTES);
	munmap(space, SPACE_BYTES);
	return rc;
}

/* The variables. */

struct range {
	char *start, *end;
};

#define RANGES 4

static void list_variables(struct range with_value[RANGES], struct range zero[2])
{
	with_value[0] = (struct range){ go_data, go_edata };
	with_value[1] = (struct range){ go_noptrdata, go_enoptrdata };
	with_value[2] = (struct range){ __start_gdr_go_module, __stop_gdr_go_module };
	with_value[3] = (struct range){ __start_gdr_go_c, __stop_gdr_go_c };
	zero[0] = (struct range){ go_bss, go_ebss };
	zero[1] = (struct range){ go_noptrbss, go_enoptrbss };
}

/* The variables as they were before the first start, here or in an ancestor. */
static char *saved_variables;

/* Not memcpy: a sanitizer would look at what lies between the variables. */
static __attribute__((no_sanitize("address"))) void copy_plain(char *to, const char *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		*(volatile char *)&to[i] = from[i];
}

static int save_variables(void)
{
	struct range with_value[RANGES], zero[2];
	size_t len = 0;
	char *mem, *at;

	list_variables(with_value, zero);
	for (int i = 0; i < RANGES; i++)
		len += with_value[i].end - with_value[i].start;
	if (!len)
		return 0;
	mem = at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return errno;
	for (int i = 0; i < RANGES; i++) {
		copy_plain(at, with_value[i].start, with_value[i].end - with_value[i].start);
		at += with_value[i].end - with_value[i].start;
	}
	mprotect(mem, len, PROT_READ);
	/* A fork may come at any moment. From here on a child restores the variables. */
	saved_variables = mem;
	atomic_signal_fence(memory_order_seq_cst);
	return 0;
}

static void restore_variables(void)
{
	struct range with_value[RANGES], zero[2];
	const char *at = saved_variables;

	list_variables(with_value, zero);
	for (int i = 0; i < RANGES; i++) {
		copy_plain(with_value[i].start, at, with_value[i].end - with_value[i].start);
		at += with_value[i].end - with_value[i].start;
	}
	for (int i = 0; i < 2; i++)
		memset(zero[i].start, 0, zero[i].end - zero[i].start);
}

void gdr_runtime_leave_parent(void)
{
	if (__start_gdr_go_entry)
		go_g = NULL;
}

/*
 * The runtime reads argv, envp and the auxiliary vector as one block of memory. It gets a
 * block of our own, so that it does not obey a host's GODEBUG or GOGC. GOMAXPROCS is
 * small: idle Go threads would slow the host, and the control plane has no work to
 * spread. Asynchronous preemption is off, as it sends signals. Stacks do not shrink, as
 * a handler of the host may need the room. The limit of memory counts them,
 * 256 KiB for each thread that is inside at once. Nobody reads a profile of memory.
 */
static void run_go_entry(void)
{
	static struct {
		char *argv[2];
		char *envp[4];
		unsigned long auxv[6][2];
	} block = {
		.argv = { "libgdrapi" },
		.envp = {
			"GOMAXPROCS=2",
			"GOMEMLIMIT=512MiB",
			"GODEBUG=asyncpreemptoff=1,gcshrinkstackoff=1,memprofilerate=0,containermaxprocs=0,updatemaxprocs=0",
		},
	};
	static const unsigned long types[] = {
		AT_PAGESZ, AT_RANDOM, AT_HWCAP, AT_SYSINFO_EHDR, AT_SECURE,
	};

	if (!__start_gdr_go_entry)
		return;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		block.auxv[i][0] = types[i];
		block.auxv[i][1] = getauxval(types[i]);
	}
	__start_gdr_go_entry[0](1, block.argv, block.envp);
}

int gdr_runtime_start(void)
{
	int rc;

	memset(requests, 0, sizeof(requests));
	rc = try_memory();
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: no room for the Go runtime, which takes %lu MiB of address space, %lu MiB of it to write to, and %u mappings: %s; raise the limit that is too low (ulimit -v, -d, -l, vm.max_map_count)",
			SPACE_BYTES >> 20, WRITABLE_BYTES >> 20, 2 * MAPS, strerror(rc));
		return rc;
	}
	rc = gdr_threads_start();
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: the %u threads that the Go runtime may need cannot be made: %s; raise the limit of threads (ulimit -u, pids.max), and open from a thread that may make others (not SCHED_DEADLINE)",
			GDR_THREADS_AT_FIRST, strerror(rc));
		return rc;
	}
	if (saved_variables)
		restore_variables();
	else
		rc = save_variables();
	if (!rc)
		rc = gdr_reserve_start();
	if (rc) {
		gdr_threads_stop();
		return rc;
	}
	run_go_entry();
	return 0;
}
