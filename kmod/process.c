// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * process.c - which process calls, and what is logged of its calls.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "gdrdrv.h"

int gdr_dbg_enabled;
module_param_named(dbg_enabled, gdr_dbg_enabled, int, 0444);
MODULE_PARM_DESC(dbg_enabled, "Log every request and its answer (default 0)");

int gdr_info_enabled;
module_param_named(info_enabled, gdr_info_enabled, int, 0444);
MODULE_PARM_DESC(info_enabled, "Log why a request is refused (default 0)");

/*
 * current's group leader exists as long as current does, so reading it needs no
 * lock. exec keeps the number and the start time.
 */
struct gdr_process gdr_process_current(void)
{
	return (struct gdr_process) {
		.tgid = current->tgid,
		.start = current->group_leader->start_time,
	};
}

bool gdr_process_is_current(const struct gdr_process *p)
{
	struct gdr_process now = gdr_process_current();

	return p->tgid == now.tgid && p->start == now.start;
}

bool gdr_file_is_owner(const struct gdr_file *f)
{
	if (gdr_process_is_current(&f->owner))
		return true;
	gdr_info("process %d did not open this file\n", current->tgid);
	return false;
}
