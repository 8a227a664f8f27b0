// SPDX-License-Identifier: MIT
/*
 * front.c - the pages that a fork empties, the start of Go's runtime in this process or in
 * a forked child of it, and which handles belong to this process. A start:
 *
 * 1. The driver's library is loaded, without a lock. Where there is none, and no other
 *    driver, the start ends here.
 * 2. The copy routine is chosen.
 * 3. The Go runtime is started, and handles get an epoch.
 * 4. gdrcore_open makes the core, and fills in where its table of handles is. Then the front
 *    is up.
 */
#define _GNU_SOURCE
#include "front.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../copy/direct.h"
#include "driver.h"
#include "env.h"
#include "log.h"
#include "runtime.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18	/* Linux 4.14 */
#endif

struct gdr_front gdr_front;

/*
 * The epoch of the newest core of this process or its ancestors. It outlives a fork, so a
 * child knows its ancestors' handles. It is written under gdr_front.lock.
 */
static _Atomic uint64_t last_epoch;

/* For kernels before 4.14 and gVisor, which do not empty pages in a fork. */
static void empty_in_child(void)
{
	memset(&gdr_front, 0, sizeof(gdr_front));
}

/* Before anything is written to the front. A child's stays so for the child's children. */
static int empty_in_children(void)
{
	static _Atomic bool done;
	int rc = 0;

	if (atomic_load(&done))
		return 0;
	if (madvise(&gdr_front, sizeof(gdr_front), MADV_WIPEONFORK))
		rc = pthread_atfork(NULL, NULL, empty_in_child);
	if (!rc)
		atomic_store(&done, true);
	return rc;
}

static bool is_absent(const char *path)
{
	return access(path, F_OK) && errno == ENOENT;
}

static bool wants_cuda(const struct gdr_options *opts)
{
	if (opts->backend)
		return strcmp(opts->backend, "gdrdrv");
	return opts->force_dmabuf || is_absent("/dev/gdrdrv");
}

/* The device of a backend that was asked for by name, if it cannot work without. */
static const char *needed_node(const struct gdr_options *opts)
{
	if (!opts->backend)
		return NULL;
	if (!strcmp(opts->backend, "rm"))
		return "/dev/nvidiactl";
	return strcmp(opts->backend, "gdrdrv") ? NULL : "/dev/gdrdrv";
}

/*
 * Finds out before any start whether a driver is there. A program that only asks for a
 * GPU then pays for no start. The answer "none" must be certain.
 */
static int prepare_start(const struct gdr_options *opts)
{
	const char *node = needed_node(opts);
	enum gdr_driver_state cuda;
	char why[256];

	if (node && is_absent(node)) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: there is no %s, without which %s cannot work; load the driver, or give the container the device (errno %d)",
			node, opts->backend, ENODEV);
		return ENODEV;
	}
	if (!wants_cuda(opts))
		return 0;
	cuda = gdr_driver_load(why, sizeof(why));
	if (cuda == GDR_DRIVER_NOT_FOUND && !opts->backend && !opts->force_dmabuf && is_absent("/dev/nvidiactl")) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: no GPU here: there is no /dev/gdrdrv, no /dev/nvidiactl, and no libcuda.so.1; install a driver (errno %d)",
			ENODEV);
		return ENODEV;
	}
	return 0;
}

static int choose_routine(const char *name)
{
	const struct copy_impl *impl = copy_select(name);

	/* A named routine makes all stores itself, so there are no direct stores. */
	gdr_front.direct = !name && copy_has_direct();
	if (impl) {
		gdr_front_use(impl);
		return 0;
	}
	gdr_log(GDR_LOG_ERROR, "GDRCOPY_COPY_IMPL is not a copy routine that this CPU can run; correct or unset it");
	return EINVAL;
}

/* Under the lock. */
static int start_next_epoch(const struct gdr_options *opts)
{
	int rc = choose_routine(opts->copy_impl);

	if (rc)
		return rc;
	rc = gdr_runtime_start();
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: the core did not start: %s", strerror(rc));
		return rc;
	}
	if (!atomic_load(&last_epoch))
		atomic_store(&gdr_front.settled, true);
	gdr_front.epoch = atomic_fetch_add(&last_epoch, 1) + 1;
	return 0;
}

/* Only the first thread of a process has come through a fork. */
void gdr_front_settle(void)
{
	if (!atomic_load(&last_epoch) || syscall(SYS_gettid) != syscall(SYS_getpid))
		return;
	gdr_runtime_leave_parent();
	atomic_store(&gdr_front.settled, true);
}

int gdr_front_start(const struct gdr_options *opts)
{
	pid_t self = syscall(SYS_gettid);
	int rc;

	if (gdr_front_is_up())
		return 0;
	rc = empty_in_children();
	if (!rc)
		rc = prepare_start(opts);
	if (rc)
		return rc;
	/* The host may hook mmap, which the start calls. */
	if (atomic_load(&gdr_front.starter) == self) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: called by a hook within this thread's first gdr_open; open when that has returned (errno %d)",
			EDEADLK);
		return EDEADLK;
	}
	pthread_mutex_lock(&gdr_front.lock);
	atomic_store(&gdr_front.starter, self);
	if (!gdr_front.epoch)
		rc = start_next_epoch(opts);
	atomic_store(&gdr_front.starter, 0);
	pthread_mutex_unlock(&gdr_front.lock);
	return rc;
}

bool gdr_front_inherited(uint64_t handle)
{
	uint64_t epoch = handle >> GDR_HANDLE_EPOCH_SHIFT;

	if (!epoch)
		return false;
	return epoch != (gdr_front_is_up() ? gdr_front.epoch : 0) && epoch <= atomic_load(&last_epoch);
}

int gdr_front_admit(uint64_t a, uint64_t b)
{
	if (gdr_front_inherited(a) || gdr_front_inherited(b)) {
		gdr_log(GDR_LOG_ERROR, "a handle from before fork() does not work in the child; call gdr_open here (errno %d)",
			EACCES);
		return EACCES;
	}
	if (gdr_front_is_up())
		return 0;
	gdr_log(GDR_LOG_ERROR, "no gdr_t is open in this process; call gdr_open first (errno %d)", EINVAL);
	return EINVAL;
}
