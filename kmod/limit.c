// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * limit.c - how much a user may pin, how much at once, and how much is logged.
 *
 * A pinning uses kernel memory of this module, charged to the caller's cgroup; and of the
 * GPU driver and, on x86, of the list of memory types, charged to nobody.
 *
 * The estimate is 2 KiB a pinning and 100 bytes a GPU page. Without a limit any
 * user could use up all memory.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "gdrdrv.h"

int gdr_dbg_enabled;
module_param_named(dbg_enabled, gdr_dbg_enabled, int, 0444);
MODULE_PARM_DESC(dbg_enabled, "Log every request and its answer (default 0)");

int gdr_info_enabled;
module_param_named(info_enabled, gdr_info_enabled, int, 0444);
MODULE_PARM_DESC(info_enabled, "Log why a request is refused (default 0)");

static unsigned long gdr_max_pins;
module_param_named(max_pins_per_user, gdr_max_pins, ulong, 0444);
MODULE_PARM_DESC(max_pins_per_user,
		 "Pinnings of one user (default: one for each 16 KiB of memory)");

static unsigned long gdr_max_mib;
module_param_named(max_mib_per_user, gdr_max_mib, ulong, 0444);
MODULE_PARM_DESC(max_mib_per_user,
		 "MiB pinned by one user (default: 80 times the memory)");

/*
 * A user with at least one region, in gdr_users by uid. The lock of gdr_users guards all
 * fields. logged: the log has the line that the user met a limit.
 */
struct gdr_user {
	uid_t uid;
	u64 pins;
	u64 bytes;
	bool logged;
};

static DEFINE_XARRAY_FLAGS(gdr_users, XA_FLAGS_ACCOUNT);

void gdr_limit_init(void)
{
	u64 kib = (u64)totalram_pages() << (PAGE_SHIFT - 10);

	if (!gdr_max_pins)
		gdr_max_pins = kib / 16;
	if (!gdr_max_mib)
		gdr_max_mib = kib / 1024 * 80;
}

/*
 * More than any coherent GPU has. The CPU reaches its memory by no BAR, and its size is
 * told to GPL modules alone.
 */
#define GDR_COHERENT_MOST (1024ULL * SZ_1G)

/* The size of the largest range that a GPU of this machine may have. */
static u64 gdr_largest_range(void)
{
	struct pci_dev *dev = NULL;
	u64 most = 0;
	int i;

	while ((dev = pci_get_device(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID, dev)))
		for (i = 0; i < PCI_STD_NUM_BARS; i++)
			most = max_t(u64, most, pci_resource_len(dev, i));
	if (IS_ENABLED(CONFIG_X86) && most)
		return most;
	return max_t(u64, most, GDR_COHERENT_MOST);
}

/*
 * Whether a range may have that size. The GPU driver makes lists of 16 bytes for each GPU
 * page before it looks at a range. GPUs may come while we are loaded.
 */
bool gdr_limit_allows(u64 size)
{
	static u64 most;

	if (size > READ_ONCE(most))
		WRITE_ONCE(most, gdr_largest_range());
	return size <= READ_ONCE(most);
}

/* Forget a user who has no region. Called with the lock held. */
static void gdr_user_put(struct gdr_user *u)
{
	if (u->pins)
		return;
	__xa_erase(&gdr_users, u->uid);
	kfree(u);
}

/* Called with the lock held. False: a limit is met; there may be a line to log. */
static bool gdr_charge_locked(struct gdr_mr *mr, struct gdr_user *u, bool *first)
{
	u64 most = min_t(u64, gdr_max_mib, U64_MAX >> 20) << 20;

	if (u->pins >= gdr_max_pins || mr->size > most ||
	    u->bytes > most - mr->size) {
		*first = !u->logged;
		u->logged = true;
		gdr_user_put(u);
		return false;
	}
	u->pins++;
	u->bytes += mr->size;
	mr->user = u;
	return true;
}

/* Charge for a region that is about to be pinned. ENOMEM where a limit is met. */
int gdr_limit_charge(struct gdr_mr *mr)
{
	uid_t uid = __kuid_val(current_uid());
	struct gdr_user *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT), *u;
	bool fits = false, first = false;

	if (!fresh)
		return -ENOMEM;
	fresh->uid = uid;
	xa_lock(&gdr_users);
	u = __xa_cmpxchg(&gdr_users, uid, NULL, fresh, GFP_KERNEL_ACCOUNT);
	if (!u)
		swap(u, fresh);
	if (!xa_is_err(u))
		fits = gdr_charge_locked(mr, u, &first);
	xa_unlock(&gdr_users);
	kfree(fresh);
	if (first)
		gdr_err("user %u meets a limit: see max_pins_per_user and max_mib_per_user\n",
			uid);
	return fits ? 0 : -ENOMEM;
}

/* The region is freed. */
void gdr_limit_uncharge(struct gdr_mr *mr)
{
	if (!mr->user)
		return;
	xa_lock(&gdr_users);
	mr->user->pins--;
	mr->user->bytes -= mr->size;
	gdr_user_put(mr->user);
	xa_unlock(&gdr_users);
}
