// SPDX-License-Identifier: MIT
/*
 * start.c - the start of the core, in this process or in a forked child of it:
 *
 * 1. The driver's library is loaded, without a lock. Where there is none, and no other
 *    driver, the start ends here.
 * 2. What the environment asks of copies is read.
 * 3. The process is registered for membarrier(2).
 * 4. The Go runtime is started (runtime.c).
 * 5. The core is made. It returns the address of its table of handles.
 *
 * docs/design.md has the whole of it.
 */
#define _GNU_SOURCE
#include "start.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "copy/auto.h"
#include "driver.h"
#include "env.h"
#include "log.h"
#include "long.h"
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
	copy_pool_ask(env.read_threads, env.write_threads);
	copy_pool_spin(env.spin_us);
	gdr_dma_want(env.dma_read, env.dma_write);
	copy_auto_ask(env.choose);
	gdr_long_choose();
	return 0;
}

/*
 * The core makes running threads pass a barrier by membarrier(2). The process must be
 * registered for that. Registration takes 10 ms and more if the process has threads
 * already, and no time before. If it fails, the core finds out by itself.
 */
static void register_barrier(void)
{
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

static int core_start(struct gdr_front *front, uint32_t epoch)
{
	uintptr_t addr = 0;
	int rc = 0;

	register_barrier();
	if (!front->runs)
		rc = gdr_runtime_start();
	if (!rc) {
		front->runs = true;
		/* Waits until the runtime is up. It starts in a thread of its own. */
		rc = gdrcore_init(epoch, &addr);
	}
	front->table = (struct gdr_table *)addr;
	return rc;
}

int gdr_start(struct gdr_front *front, uint32_t epoch)
{
	int rc = read_environment(front);

	if (rc)
		return rc;
	rc = core_start(front, epoch);
	if (rc)
		gdr_log(GDR_LOG_ERROR, "gdr_open: the core did not start: %s", strerror(rc));
	return rc;
}
