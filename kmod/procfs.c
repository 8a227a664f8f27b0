// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * procfs.c - /proc/driver/gdrdrv: the build, the parameters, the number of lost
 * pinnings and, for tests, the number of pinnings.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "gdrdrv.h"
#include "gdrdrv_nvidia.h"

static struct proc_dir_entry *gdr_proc_dir;

static int gdr_proc_params(struct seq_file *s, void *unused)
{
	seq_printf(s, "version: %d.%d\n", GDRDRV_MAJOR_VERSION,
		   GDRDRV_MINOR_VERSION);
	seq_printf(s, "NVIDIA driver flavour: %s\n", GDR_NVIDIA_FLAVOUR);
	seq_printf(s, "Use persistent mapping: %s\n",
		   gdr_nvp2p_persistent() ? "yes" : "no");
	seq_printf(s, "dbg_enabled: %d\n", gdr_dbg_enabled);
	seq_printf(s, "info_enabled: %d\n", gdr_info_enabled);
	seq_printf(s, "use_persistent_mapping: %d\n", gdr_nvp2p_wanted());
	seq_printf(s, "lost pinnings: %d\n", gdr_nvp2p_lost());
	return 0;
}

static int gdr_proc_refcount(struct seq_file *s, void *unused)
{
	seq_printf(s, "%d\n", gdr_nvp2p_refcount());
	return 0;
}

void gdr_procfs_exit(void)
{
	proc_remove(gdr_proc_dir);
}

int gdr_procfs_init(void)
{
	gdr_proc_dir = proc_mkdir("driver/" GDRDRV_STRING, NULL);
	if (!gdr_proc_dir)
		return -ENOMEM;
	if (!proc_create_single("params", 0444, gdr_proc_dir, gdr_proc_params))
		goto fail;
	if (gdr_dbg_enabled &&
	    !proc_create_single("nv_get_pages_refcount", 0444, gdr_proc_dir,
				gdr_proc_refcount))
		goto fail;
	return 0;

fail:
	gdr_procfs_exit();
	return -ENOMEM;
}
