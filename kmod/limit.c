// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * limit.c - how much a file and a user may pin.
 *
 * A pinning takes memory of the kernel: ours, which is charged to the caller's
 * cgroup, the GPU driver's and, for a mapping, that of the list of memory types,
 * which are charged to nobody. Estimated: 2 KiB a pinning, and 64 bytes a GPU
 * page. Without a bound any user could take all memory there is.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
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
 * A user with at least one region; in gdr_users by the number of the user, under
 * gdr_users_lock, as are all counts. told: the log says that a limit was met.
 */
struct gdr_user {
	unsigned long uid;
	struct gdr_usage usage;
	bool told;
};

static DEFINE_XARRAY_FLAGS(gdr_users, XA_FLAGS_ACCOUNT);
static DEFINE_MUTEX(gdr_users_lock);

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

/* The caller's entry, made if there is none. Called with gdr_users_lock held. */
static struct gdr_user *gdr_user_find(void)
{
	unsigned long uid = __kuid_val(current_uid());
	struct gdr_user *u = xa_load(&gdr_users, uid);

	if (u)
		return u;
	u = kzalloc(sizeof(*u), GFP_KERNEL_ACCOUNT);
	if (!u)
		return NULL;
	u->uid = uid;
	if (!xa_err(xa_store(&gdr_users, uid, u, GFP_KERNEL_ACCOUNT)))
		return u;
	kfree(u);
	return NULL;
}

static void gdr_user_drop_unused(struct gdr_user *u)
{
	if (u->usage.pins)
		return;
	xa_erase(&gdr_users, u->uid);
	kfree(u);
}

/* Count a region that is about to be pinned; ENOMEM where a limit is met. */
int gdr_limit_charge(struct gdr_file *f, struct gdr_mr *mr)
{
	struct gdr_user *u;
	int ret = 0;

	mutex_lock(&gdr_users_lock);
	u = gdr_user_find();
	if (!u) {
		ret = -ENOMEM;
		goto unlock;
	}
	if (gdr_fits(&f->usage, mr->size, gdr_file_pins, gdr_file_mib) &&
	    gdr_fits(&u->usage, mr->size, gdr_user_pins, gdr_user_mib)) {
		gdr_use(&f->usage, mr->size);
		gdr_use(&u->usage, mr->size);
		mr->user = u;
	} else {
		ret = -ENOMEM;
		if (!u->told)
			gdr_err("user %lu meets a limit: see max_pins_per_* and max_mib_per_*\n",
				u->uid);
		u->told = true;
		gdr_user_drop_unused(u);
	}
unlock:
	mutex_unlock(&gdr_users_lock);
	return ret;
}

/* The region is no longer the file's. */
void gdr_limit_leave_file(struct gdr_file *f, const struct gdr_mr *mr)
{
	mutex_lock(&gdr_users_lock);
	gdr_unuse(&f->usage, mr->size);
	mutex_unlock(&gdr_users_lock);
}

/* The region goes. */
void gdr_limit_uncharge(struct gdr_mr *mr)
{
	if (!mr->user)
		return;
	mutex_lock(&gdr_users_lock);
	gdr_unuse(&mr->user->usage, mr->size);
	gdr_user_drop_unused(mr->user);
	mutex_unlock(&gdr_users_lock);
}
