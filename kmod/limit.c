// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * limit.c - how much a file and a user may pin.
 *
 * A pinning uses kernel memory of three kinds:
 *
 *	this module's, charged to the caller's cgroup
 *	the GPU driver's, charged to nobody
 *	for a mapping, the list of memory types', charged to nobody
 *
 * The estimate is 2 KiB a pinning and 64 bytes a GPU page. Without a limit any
 * user could use up all memory.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "gdrdrv.h"

static unsigned long gdr_file_pins;
module_param_named(max_pins_per_file, gdr_file_pins, ulong, 0444);
MODULE_PARM_DESC(max_pins_per_file,
		 "Pinnings of one open file (default: half of max_pins_per_user)");

static unsigned long gdr_user_pins;
module_param_named(max_pins_per_user, gdr_user_pins, ulong, 0444);
MODULE_PARM_DESC(max_pins_per_user,
		 "Pinnings of one user (default: one for each 16 KiB of memory)");

static unsigned long gdr_file_mib;
module_param_named(max_mib_per_file, gdr_file_mib, ulong, 0444);
MODULE_PARM_DESC(max_mib_per_file,
		 "MiB pinned by one open file (default: half of max_mib_per_user)");

static unsigned long gdr_user_mib;
module_param_named(max_mib_per_user, gdr_user_mib, ulong, 0444);
MODULE_PARM_DESC(max_mib_per_user,
		 "MiB pinned by one user (default: 128 times the memory)");

/*
 * A user with at least one region, in gdr_users by uid. The lock of gdr_users guards all
 * counts. The free callback takes it. logged: the log has the line that the user met a
 * limit.
 */
struct gdr_user {
	uid_t uid;
	struct gdr_usage usage;
	bool logged;
};

static DEFINE_XARRAY_FLAGS(gdr_users, XA_FLAGS_ACCOUNT);

void gdr_limit_init(void)
{
	u64 kib = (u64)totalram_pages() << (PAGE_SHIFT - 10);

	if (!gdr_user_pins)
		gdr_user_pins = kib / 16;
	if (!gdr_file_pins)
		gdr_file_pins = DIV_ROUND_UP(gdr_user_pins, 2);
	if (!gdr_user_mib)
		gdr_user_mib = kib / 1024 * 128;
	if (!gdr_file_mib)
		gdr_file_mib = DIV_ROUND_UP(gdr_user_mib, 2);
}

static bool gdr_fits(const struct gdr_usage *usage, u64 bytes,
		     unsigned long pins, unsigned long mib)
{
	u64 most = min_t(u64, mib, U64_MAX >> 20) << 20;

	return usage->pins < pins && bytes <= most &&
	       usage->bytes <= most - bytes;
}

static void gdr_use(struct gdr_usage *usage, u64 bytes)
{
	usage->pins++;
	usage->bytes += bytes;
}

static void gdr_unuse(struct gdr_usage *usage, u64 bytes)
{
	usage->pins--;
	usage->bytes -= bytes;
}

static struct gdr_user *gdr_user_new(uid_t uid)
{
	struct gdr_user *u = kzalloc(sizeof(*u), GFP_KERNEL_ACCOUNT);

	if (u)
		u->uid = uid;
	return u;
}

/*
 * The user, who is *fresh if there is none yet; then *fresh becomes NULL. Called with the
 * lock held, which may be released meanwhile. NULL: no memory.
 */
static struct gdr_user *gdr_user_get(uid_t uid, struct gdr_user **fresh)
{
	struct gdr_user *u;

	u = __xa_cmpxchg(&gdr_users, uid, NULL, *fresh, GFP_KERNEL_ACCOUNT);
	if (xa_is_err(u))
		return NULL;
	if (!u)
		swap(u, *fresh);
	return u;
}

/* Free a user who has no region. Called with the lock held. */
static void gdr_user_put(struct gdr_user *u)
{
	if (u->usage.pins)
		return;
	__xa_erase(&gdr_users, u->uid);
	kfree(u);
}

/* Called with the lock held. False: a limit is met; there may be a line to log. */
static bool gdr_charge_locked(struct gdr_file *f, struct gdr_mr *mr,
			      struct gdr_user *u, bool *first)
{
	if (!gdr_fits(&f->usage, mr->size, gdr_file_pins, gdr_file_mib) ||
	    !gdr_fits(&u->usage, mr->size, gdr_user_pins, gdr_user_mib)) {
		*first = !u->logged;
		u->logged = true;
		return false;
	}
	gdr_use(&f->usage, mr->size);
	gdr_use(&u->usage, mr->size);
	mr->user = u;
	return true;
}

/* Charge for a region that is about to be pinned. ENOMEM where a limit is met. */
int gdr_limit_charge(struct gdr_file *f, struct gdr_mr *mr)
{
	uid_t uid = __kuid_val(current_uid());
	struct gdr_user *fresh = gdr_user_new(uid), *u;
	bool fits = false, first = false;

	if (!fresh)
		return -ENOMEM;
	xa_lock(&gdr_users);
	u = gdr_user_get(uid, &fresh);
	if (u) {
		fits = gdr_charge_locked(f, mr, u, &first);
		gdr_user_put(u);
	}
	xa_unlock(&gdr_users);
	kfree(fresh);
	if (first)
		gdr_err("user %u meets a limit: see max_pins_per_* and max_mib_per_*\n",
			uid);
	return fits ? 0 : -ENOMEM;
}

/* The region leaves the file. */
void gdr_limit_leave_file(struct gdr_file *f, const struct gdr_mr *mr)
{
	xa_lock(&gdr_users);
	gdr_unuse(&f->usage, mr->size);
	xa_unlock(&gdr_users);
}

/* The region is freed. */
void gdr_limit_uncharge(struct gdr_mr *mr)
{
	if (!mr->user)
		return;
	xa_lock(&gdr_users);
	gdr_unuse(&mr->user->usage, mr->size);
	gdr_user_put(mr->user);
	xa_unlock(&gdr_users);
}
