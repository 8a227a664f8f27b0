// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * process.c - which process calls, and what is logged of its calls.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "gdrdrv.h"

int gdr_dbg_enabled;
module_param_named(dbg_enabled, gdr_dbg_enabled, int, 0444);
MODULE_PARM_DESC(dbg_enabled, "Log every request and its answer (default 0)");

int gdr_info_enabled;
module_param_named(info_enabled, gdr_info_enabled, int, 0444);
MODULE_PARM_DESC(info_enabled, "Log why a request is refused (default 0)");

static LIST_HEAD(gdr_processes);
static DEFINE_MUTEX(gdr_processes_lock);

/*
 * current's group leader exists as long as current does, so reading it needs no
 * lock. exec keeps the number and the start time.
 */
bool gdr_process_is_current(const struct gdr_process *p)
{
	return p->tgid == current->tgid &&
	       p->start == current->group_leader->start_time;
}

/* The caller's process opens a file. NULL: no memory. */
struct gdr_process *gdr_process_get(void)
{
	struct gdr_process *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT), *p;

	if (!fresh)
		return NULL;
	fresh->tgid = current->tgid;
	fresh->start = current->group_leader->start_time;
	mutex_lock(&gdr_processes_lock);
	list_for_each_entry(p, &gdr_processes, node)
		if (gdr_process_is_current(p))
			goto found;
	list_add(&fresh->node, &gdr_processes);
	p = fresh;
	fresh = NULL;
found:
	p->files++;
	atomic_set(&p->pauses, GDR_PUT_PAUSES);
	mutex_unlock(&gdr_processes_lock);
	kfree(fresh);
	return p;
}

/* Such a file ends. */
void gdr_process_put(struct gdr_process *p)
{
	mutex_lock(&gdr_processes_lock);
	if (!--p->files) {
		list_del(&p->node);
		kfree(p);
	}
	mutex_unlock(&gdr_processes_lock);
}

bool gdr_file_is_owner(const struct gdr_file *f)
{
	if (gdr_process_is_current(f->owner))
		return true;
	gdr_info("process %d did not open this file\n", current->tgid);
	return false;
}
