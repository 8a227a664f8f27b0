// SPDX-License-Identifier: MIT
/*
 * start.c - starts the Go core, in this process or in a forked child of it.
 *
 * The Go runtime does not survive fork(): its other threads are gone, with
 * whatever they held. So a child never enters a runtime that an ancestor
 * started or was starting. It loads a private copy of this shared object and
 * uses the core in that one. docs/design.md has the picture.
 */
#define _GNU_SOURCE
#include "copy_cpus.h"
#include "front.h"
#include "guest.h"

#include "_cgo_export.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18	/* Linux 4.14 */
#endif

_Atomic(struct gdr_front *) gdr_front_page;

/*
 * These two outlive a fork on purpose. last_epoch is the epoch of the newest
 * core of this process or its ancestors; runtime_used says that the runtime in
 * this object was started, or was being started, here or in an ancestor. Both
 * are written under gdr_front.lock.
 */
static _Atomic uint64_t last_epoch;
static _Atomic bool runtime_used;

/*
 * The runtime's entry, which extld.sh took out of .init_array; the linker makes
 * the symbol from the section's name. It is absent in a build without that
 * wrapper (go vet, go test), where the runtime starts at load.
 */
typedef void (*go_entry_fn)(int argc, char **argv, char **envp);
extern const go_entry_fn __start_gdr_go_entry[]
	__attribute__((weak, visibility("hidden")));

/*
 * The runtime's table of signals, and the flag by which it keeps a signal
 * unblocked in its own threads whatever mask they inherit. It does so for
 * SIGCHLD and SIGPROF, among others: a host's handler would run on a thread, and
 * maybe on a stack, that is not the host's, and a host that waits for a signal
 * that all of its threads block would miss it. So that flag is cleared before
 * the runtime starts, but for faults. Go 1.26: struct sigTabT and
 * _SigUnblock of package runtime.
 */
struct go_signal {
	int32_t flags;
	const char *name;	/* not terminated */
	int64_t name_len;
};

#define GO_SIGNALS 65
#define GO_SIG_UNBLOCK (1 << 7)

extern struct go_signal go_sigtable[GO_SIGNALS]
	__asm__("runtime.sigtable") __attribute__((weak, visibility("hidden")));

static bool go_sigtable_is_known(void)
{
	static const char hup[] = "SIGHUP: terminal line hangup";

	return go_sigtable && go_sigtable[SIGHUP].name_len == sizeof(hup) - 1 &&
	       !memcmp(go_sigtable[SIGHUP].name, hup, sizeof(hup) - 1) &&
	       (go_sigtable[SIGCHLD].flags & GO_SIG_UNBLOCK);
}

static void keep_signals_from_go_threads(void)
{
	if (!go_sigtable_is_known()) {
		gdr_log(GDR_LOG_WARN, "this Go runtime's signal table is not the one expected: its threads may take the host's SIGCHLD and SIGPROF");
		return;
	}
	for (int sig = 1; sig < GO_SIGNALS; sig++)
		if (!(gdr_guest_faults() & gdr_signal_bit(sig)))
			go_sigtable[sig].flags &= ~GO_SIG_UNBLOCK;
}

static void run_go_entry(void)
{
	/*
	 * The runtime walks argv, envp and the auxiliary vector as one block of
	 * memory. It gets one of our own with an empty environment: a host's
	 * GODEBUG or GOGC is not meant for us.
	 */
	static struct {
		char *argv[2];
		char *envp[1];
		unsigned long auxv[6][2];
	} block;
	static char name[] = "libgdrapi";
	static const unsigned long types[] = {
		AT_PAGESZ, AT_RANDOM, AT_HWCAP, AT_SYSINFO_EHDR, AT_SECURE,
	};

	if (!__start_gdr_go_entry)
		return;
	block.argv[0] = name;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		block.auxv[i][0] = types[i];
		block.auxv[i][1] = getauxval(types[i]);
	}
	keep_signals_from_go_threads();
	__start_gdr_go_entry[0](1, block.argv, block.envp);
}

/*
 * The runtime makes a few file descriptors while it starts, and ends the process
 * if it cannot.
 */
static int check_fds_left(void)
{
	int fds[4], made = 0;

	while (made < 4 && (fds[made] = eventfd(0, EFD_CLOEXEC)) >= 0)
		made++;
	for (int i = 0; i < made; i++)
		close(fds[i]);
	return made == 4 ? 0 : EMFILE;
}

/* struct gdr_core.start. Called under the front's lock, again after a failure. */
static int core_start(uint32_t epoch, struct gdr_table **table)
{
	static bool running;
	struct gdr_host_state *saved = gdr_host_state_save();
	uintptr_t addr = 0;
	struct gdr_guest guest;
	int rc;

	if (!saved)
		return ENOMEM;
	rc = running ? 0 : check_fds_left();
	if (rc) {
		free(saved);
		return rc;
	}
	gdr_guest_enter(&guest);
	if (!running) {
		running = true;
		run_go_entry();
	}
	/* Waits until the runtime, which starts in a thread, is up. */
	rc = gdrcore_init(epoch, &addr);
	gdr_guest_leave(&guest);
	gdr_host_state_restore(saved);
	*table = (struct gdr_table *)addr;
	return rc;
}

const struct gdr_core gdr_own_core = {
	.magic = GDR_CORE_MAGIC,
	.start = core_start,
	.open = gdrcore_open,
	.close = gdrcore_close,
	.pin = gdrcore_pin,
	.unpin = gdrcore_unpin,
	.map = gdrcore_map,
	.unmap = gdrcore_unmap,
	.info = gdrcore_info,
	.callback_flag = gdrcore_callback_flag,
	.attribute = gdrcore_attribute,
	.driver_version = gdrcore_driver_version,
	.backend = gdrcore_backend,
	.mem_alloc = gdrcore_mem_alloc,
	.mem_free = gdrcore_mem_free,
	.mem_ptr = gdrcore_mem_ptr,
};

/*
 * Opens the file that this object was loaded from. The name is taken from the
 * process's map, as an absolute path, and the file must still be the one that
 * is mapped: another one would have its functions at other places.
 */
static int open_own_file(void)
{
	unsigned long here = (unsigned long)&gdr_own_core;
	unsigned long lo, hi, inode;
	unsigned int major, minor;
	char *line = NULL;
	size_t room = 0;
	int fd = -1, at;
	struct statx st;
	FILE *maps;

	maps = fopen("/proc/self/maps", "re");
	if (!maps)
		return -1;
	while (getline(&line, &room, maps) > 0) {
		if (sscanf(line, "%lx-%lx %*s %*x %x:%x %lu %n", &lo, &hi,
			   &major, &minor, &inode, &at) < 5 ||
		    here < lo || here >= hi)
			continue;
		line[strcspn(line, "\n")] = '\0';
		fd = open(line + at, O_RDONLY | O_CLOEXEC);
		break;
	}
	/* statx, for fstat ties the library to glibc 2.33. */
	if (fd >= 0 && (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) || st.stx_ino != inode)) {
		close(fd);
		fd = -1;
		errno = ESTALE;
	}
	free(line);
	fclose(maps);
	return fd;
}

/* Returns a memory file with the content of fd, or -1. */
static int copy_to_memory(int fd)
{
	ssize_t n;
	int mem;

	mem = memfd_create("libgdrapi", MFD_CLOEXEC);
	if (mem < 0)
		return -1;
	do
		n = sendfile(mem, fd, NULL, 1 << 30);
	while (n > 0 || (n < 0 && errno == EINTR));
	if (n < 0) {
		close(mem);
		return -1;
	}
	return mem;
}

/*
 * Loads a private copy of this object and returns its core, or NULL with errno
 * set. The copy is the same file at another address, so its core lies as far
 * from its gdr_open as ours from ours; no symbol needs to be exported for it.
 */
static const struct gdr_core *load_copy(void)
{
	ptrdiff_t offset = (const char *)&gdr_own_core - (const char *)gdr_open_here();
	const struct gdr_core *core = NULL;
	const char *why = NULL;
	int file, mem = -1;
	char path[64];
	void *lib, *open_there;

	file = open_own_file();
	if (file >= 0)
		mem = copy_to_memory(file);
	if (mem < 0) {
		why = strerror(errno);
		goto out;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", mem);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	open_there = lib ? dlsym(lib, "gdr_open") : NULL;
	if (!open_there) {
		why = dlerror();
		goto out;
	}
	core = (const struct gdr_core *)((const char *)open_there + offset);
	if (core->magic != GDR_CORE_MAGIC || core == &gdr_own_core) {
		why = "the file on disk is not the one that was loaded";
		core = NULL;
	}
out:
	if (mem >= 0)
		close(mem);
	if (file >= 0)
		close(file);
	if (!core) {
		gdr_log(GDR_LOG_ERROR,
			"gdr_open in a forked child needs a private copy of libgdrapi, and loading one failed: %s; keep the library's file in place and /proc mounted, or open before no fork",
			why ? why : "unknown");
		errno = ENOSYS;
	}
	return core;
}

/* The one user of a page that fork empties where the kernel cannot (< 4.14). */
static void empty_page_in_child(void)
{
	memset(atomic_load(&gdr_front_page), 0, sizeof(struct gdr_front));
}

static struct gdr_front *front_page(void)
{
	struct gdr_front *mine, *theirs = NULL;
	size_t len = sizeof(struct gdr_front);

	mine = atomic_load_explicit(&gdr_front_page, memory_order_acquire);
	if (mine)
		return mine;
	mine = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mine == MAP_FAILED)
		return NULL;
	bool wiped = madvise(mine, len, MADV_WIPEONFORK) == 0;

	if (!atomic_compare_exchange_strong(&gdr_front_page, &theirs, mine)) {
		munmap(mine, len);
		return theirs;
	}
	if (!wiped)
		pthread_atfork(NULL, NULL, empty_page_in_child);
	return mine;
}

/* Starts a core for front, whose lock is held. Returns 0 or an errno value. */
static int start_locked(struct gdr_front *front)
{
	const char *impl_name = getenv("GDRCOPY_COPY_IMPL");
	uint64_t epoch = atomic_load(&last_epoch) + 1;
	const char *bad;
	int rc;

	front->impl = copy_select(impl_name);
	if (!front->impl) {
		gdr_log(GDR_LOG_ERROR,
			"GDRCOPY_COPY_IMPL=%s: no such copy routine, or this CPU cannot run it; unset it",
			impl_name);
		return EINVAL;
	}
	rc = copy_pool_want_env(&bad);
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "%s is not a number from 1 to %u; correct or unset it",
			bad, COPY_THREADS_MAX);
		return rc;
	}
	rc = gdr_dma_want_env(&bad);
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "%s is not a number of bytes, from 1; correct or unset it", bad);
		return rc;
	}
	gdr_data_set_limits();
	if (epoch > GDR_HANDLE_EPOCH_MAX) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: %d generations of forks have opened; no more handles to tell apart",
			GDR_HANDLE_EPOCH_MAX);
		return EAGAIN;
	}
	if (!front->loaded) {
		/* The flag first: a fork may come at any moment. */
		front->loaded = atomic_exchange(&runtime_used, true) ?
					load_copy() : &gdr_own_core;
		if (!front->loaded)
			return errno;
	}
	rc = front->loaded->start(epoch, &front->table);
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: the core did not start: %s", strerror(rc));
		return rc;
	}
	gdr_data_init();
	front->epoch = epoch;
	atomic_store(&last_epoch, epoch);
	atomic_store_explicit(&front->core, front->loaded, memory_order_release);
	return 0;
}

struct gdr_front *gdr_front_start(void)
{
	struct gdr_front *front = front_page();
	int rc = 0, cancel;

	if (!front)
		return NULL;
	if (atomic_load_explicit(&front->core, memory_order_acquire))
		return front;
	/* A start calls what ends a cancelled thread: not with the lock held. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&front->lock);
	if (!atomic_load_explicit(&front->core, memory_order_relaxed))
		rc = start_locked(front);
	pthread_mutex_unlock(&front->lock);
	pthread_setcancelstate(cancel, NULL);
	errno = rc;
	return rc ? NULL : front;
}

int gdr_front_start_threads(struct gdr_front *front)
{
	int rc;

	if (!copy_pool_short(atomic_load(&front->pool)))
		return 0;
	pthread_mutex_lock(&front->lock);
	rc = copy_pool_start(&front->pool, copy_cpus_allowed());
	pthread_mutex_unlock(&front->lock);
	if (rc == ERANGE) {
		gdr_log(GDR_LOG_WARN, "fewer threads share a copy than were asked for: the thread that starts them may run on too few CPUs; let it run on more");
		rc = 0;
	}
	if (rc)
		gdr_log(GDR_LOG_ERROR, "fewer threads share a copy than were asked for: %s; raise the limit of threads or of memory",
			strerror(rc));
	return rc;
}

static void prepare_dma(struct gdr_front *front, const struct gdr_core *core, uint64_t g, uint64_t h)
{
	struct gdr_core_info info = { 0 };
	struct gdr_guest guest;
	int rc;

	/* No signal and no end of the thread comes while the lock is held. */
	gdr_guest_enter(&guest);
	rc = core->info(g, h, &info);
	if (!rc) {
		pthread_mutex_lock(&front->lock);
		gdr_dma_map(&front->dma, h, info.va);
		pthread_mutex_unlock(&front->lock);
	}
	gdr_guest_leave(&guest);
}

/* All that a copy cannot do: it may run in a signal handler. */
void gdr_front_mapped(struct gdr_front *front, const struct gdr_core *core, uint64_t g, uint64_t h)
{
	gdr_front_start_threads(front);
	if (atomic_load(&gdr_dma_least_to) != SIZE_MAX ||
	    atomic_load(&gdr_dma_least_from) != SIZE_MAX)
		prepare_dma(front, core, g, h);
}

static uint64_t own_epoch(void)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);

	if (!front || !atomic_load_explicit(&front->core, memory_order_acquire))
		return 0;
	return front->epoch;
}

bool gdr_front_inherited(uint64_t handle)
{
	uint64_t epoch = handle >> GDR_HANDLE_EPOCH_SHIFT;

	return epoch && epoch != own_epoch() && epoch <= atomic_load(&last_epoch);
}

int gdr_front_admit(uint64_t a, uint64_t b, const struct gdr_core **core)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);

	if (gdr_front_inherited(a) || gdr_front_inherited(b)) {
		gdr_log(GDR_LOG_ERROR, "a handle from before fork() does not work in the child; call gdr_open here (errno %d)",
			EACCES);
		return EACCES;
	}
	*core = front ? atomic_load_explicit(&front->core, memory_order_acquire) : NULL;
	if (*core)
		return 0;
	gdr_log(GDR_LOG_ERROR, "no gdr_t is open in this process; call gdr_open first (errno %d)", EINVAL);
	return EINVAL;
}
