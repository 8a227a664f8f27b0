// SPDX-License-Identifier: MIT
/*
 * start.c - the start of the core, in this process or in a forked child of it:
 *
 * 1. The driver's library is loaded, without a lock. Where there is none, and no other
 *    driver, the start ends here.
 * 2. What the environment asks of copies is read.
 * 3. The Go runtime is started (runtime.c).
 * 4. The core is made. It returns the address of its table of handles.
 *
 * Before step 3 the process is registered for membarrier(2), if it has one thread.
 *
 * docs/design.md has the whole of it.
 */
#define _GNU_SOURCE
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"
#include "env.h"
#include "log.h"
#include "runtime.h"

static bool is_absent(const char *path)
{
	return access(path, F_OK) && errno == ENOENT;
}

static bool wants_cuda(const struct gdr_options *opts)
{
	if (opts->backend && *opts->backend)
		return strcmp(opts->backend, "gdrdrv");
	return opts->force_dmabuf || is_absent("/dev/gdrdrv");
}

/* A backend that was asked for by name logs itself what it lacks. */
static bool may_be_any(const struct gdr_options *opts)
{
	return !(opts->backend && *opts->backend) && !opts->force_dmabuf;
}

/*
 * Finds out before any start whether a driver is there. A program that only asks for a
 * GPU then pays for no start. The answer "none" must be certain.
 */
int gdr_start_prepare(const struct gdr_options *opts)
{
	enum gdr_driver_state cuda;
	char why[256];

	if (!wants_cuda(opts))
		return 0;
	cuda = gdr_driver_load(why, sizeof(why));
	if (cuda == GDR_DRIVER_NO_LOADER) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: when this process was forked, another thread of its parent was loading a library, so that none can be loaded here; fork at another time, or load libcuda.so.1 before it (errno %d)",
			EBUSY);
		return EBUSY;
	}
	if (cuda == GDR_DRIVER_NOT_FOUND && may_be_any(opts) && is_absent("/dev/nvidiactl")) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: no GPU here: there is no /dev/gdrdrv, no /dev/nvidiactl, and no libcuda.so.1; install a driver (errno %d)",
			ENODEV);
		return ENODEV;
	}
	return 0;
}

static int read_environment(struct gdr_front *front)
{
	struct gdr_env_error error;
	struct gdr_copy_env env;
	int rc = gdr_env_copies(&env, &error);

	if (rc) {
		gdr_log(GDR_LOG_ERROR, "%s is not %s; correct or unset it", error.name, error.want);
		return rc;
	}
	front->impl = env.impl;
	front->direct = env.direct;
	copy_pool_spin(env.spin_us);
	copy_plan_set_by_env(&env.wishes);
	return 0;
}

int gdr_register_barrier(void)
{
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) ? errno : 0;
}

/* "." and ".." are links to the folder, as each thread's own ".." is. */
static bool is_single_threaded(void)
{
	struct statx tasks;	/* stat is a function of the C library since 2.33 alone */

	return !statx(AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &tasks) && tasks.stx_nlink == 3;
}

static int core_start(struct gdr_front *front, gdr_core_init *init, uint32_t epoch)
{
	uintptr_t addr = 0;
	int rc = 0;

	if (is_single_threaded())
		gdr_register_barrier();
	if (!front->runs)
		rc = gdr_runtime_start();
	if (!rc) {
		front->runs = true;
		/* Waits until the runtime is up. It starts in a thread of its own. */
		rc = init(epoch, &addr);
	}
	front->table = (struct gdr_table *)addr;
	return rc;
}

int gdr_start(struct gdr_front *front, gdr_core_init *init, uint32_t epoch)
{
	int rc = read_environment(front);

	if (rc)
		return rc;
	rc = core_start(front, init, epoch);
	if (rc)
		gdr_log(GDR_LOG_ERROR, "gdr_open: the core did not start: %s", strerror(rc));
	return rc;
}
