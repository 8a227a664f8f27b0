// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * process.c - which process calls, how long it waits for a GPU driver that takes no
 * pages back, and what is logged of its calls.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/jiffies.h>
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

/*
 * A burst of a process begins at its first put that is refused, and ends 3 s later or at
 * a put that succeeds. In it the process tries again; after it, once. Time without a
 * refusal gives the 3 s back: all in 10 s, a part in less. The process is the one that
 * closes or unpins, whoever opened the file.
 */
#define GDR_BURST (3 * HZ)
#define GDR_BURST_REST (10 * HZ)

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

/* The caller's entry, or NULL. Old ones go. Called with the lock held. */
static struct gdr_process *gdr_process_find(void)
{
	struct gdr_process *p, *next, *found = NULL;

	list_for_each_entry_safe(p, next, &gdr_processes, node) {
		if (!p->files && time_after(jiffies, p->last + 600 * HZ)) {
			list_del(&p->node);
			kfree(p);
		} else if (gdr_process_is_current(p)) {
			found = p;
		}
	}
	return found;
}

/* The caller's entry. Where there is none, fresh becomes it. Called with the lock held. */
static struct gdr_process *gdr_process_enter(struct gdr_process *fresh)
{
	struct gdr_process *p = gdr_process_find();

	if (p) {
		kfree(fresh);
		return p;
	}
	fresh->tgid = current->tgid;
	fresh->start = current->group_leader->start_time;
	list_add(&fresh->node, &gdr_processes);
	return fresh;
}

/* The caller's process opens a file. NULL: no memory. */
struct gdr_process *gdr_process_get(void)
{
	struct gdr_process *p = kzalloc(sizeof(*p), GFP_KERNEL_ACCOUNT);

	if (!p)
		return NULL;
	mutex_lock(&gdr_processes_lock);
	p = gdr_process_enter(p);
	p->files++;
	mutex_unlock(&gdr_processes_lock);
	return p;
}

/* Such a file ends. */
void gdr_process_put(struct gdr_process *p)
{
	mutex_lock(&gdr_processes_lock);
	p->files--;
	gdr_process_find();
	mutex_unlock(&gdr_processes_lock);
}

/* A put of the caller's, which began then, was refused. Wait; false: do not try again. */
bool gdr_burst_wait(unsigned long began)
{
	struct gdr_process *p = kzalloc(sizeof(*p), GFP_KERNEL_ACCOUNT | __GFP_NOFAIL);
	long rest;
	bool more;

	mutex_lock(&gdr_processes_lock);
	p = gdr_process_enter(p);
	rest = clamp_t(long, began - p->last, 0, GDR_BURST_REST);
	if (!time_before(jiffies, p->end))
		p->end = jiffies + rest * GDR_BURST / GDR_BURST_REST;
	p->last = jiffies;
	more = time_before(jiffies + msecs_to_jiffies(GDR_PUT_PAUSE), p->end);
	mutex_unlock(&gdr_processes_lock);
	if (more)
		msleep(GDR_PUT_PAUSE);
	return more;
}

/* A put of the caller's succeeded. */
void gdr_burst_over(void)
{
	struct gdr_process *p;

	mutex_lock(&gdr_processes_lock);
	p = gdr_process_find();
	if (p) {
		p->end = 0;
		p->last = 0;
	}
	mutex_unlock(&gdr_processes_lock);
}

/* No file is open. */
void gdr_process_exit(void)
{
	struct gdr_process *p, *next;

	list_for_each_entry_safe(p, next, &gdr_processes, node)
		kfree(p);
}

bool gdr_file_is_owner(const struct gdr_file *f)
{
	if (gdr_process_is_current(f->owner))
		return true;
	gdr_info("process %d did not open this file\n", current->tgid);
	return false;
}
