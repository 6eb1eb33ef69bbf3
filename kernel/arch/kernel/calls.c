// SPDX-License-Identifier: GPL-2.0-only
/* What jobs call: every system call, and what system calls lack for files that are known by an O_PATH descriptor. */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/posix_acl.h>
#include <linux/slab.h>
#include <linux/syscalls.h>
#include <linux/task_work.h>
#include <linux/unistd.h>
#include <linux/xattr.h>
#include <asm/host.h>
#include <asm/syscalls.h>
#include "internal.h"

typedef s64 (*system_call)(u64, u64, u64, u64, u64, u64);

/* Calls that make no sense without processes. */
#define sys_clone sys_ni_syscall
#define sys_mmap sys_ni_syscall
#define sys_rt_sigreturn sys_ni_syscall

#undef __SYSCALL
#define __SYSCALL(number, function) [number] = (system_call)function,

static const system_call system_calls[__NR_syscalls] = {
	[0 ... __NR_syscalls - 1] = (system_call)sys_ni_syscall,
#include <asm/unistd.h>
};

OUTRIGGER_EXPORT s64 outrigger_system_call(u64 number, const u64 a[6])
{
	s64 result;

	if (number >= __NR_syscalls)
		return -ENOSYS;
	result = system_calls[number](a[0], a[1], a[2], a[3], a[4], a[5]);
	/* As in a process, what a call leaves to its end has happened when it returns: umount2() unmounts there. */
	if (task_work_pending(current))
		task_work_run();
	return result;
}

OUTRIGGER_EXPORT s64 outrigger_act_as(u32 uid, u32 gid)
{
	const struct cred *now = current_cred();
	struct cred *new;

	if (__kuid_val(now->fsuid) == uid && __kgid_val(now->fsgid) == gid)
		return 0;
	new = prepare_creds();
	if (!new)
		return -ENOMEM;
	new->fsuid = KUIDT_INIT(uid);
	new->fsgid = KGIDT_INIT(gid);
	new->cap_effective = CAP_FULL_SET;
	if (uid)
		cap_lower(new->cap_effective, CAP_FSETID);
	return commit_creds(new);
}

OUTRIGGER_EXPORT s64 outrigger_reopen(u32 fd, u32 flags)
{
	CLASS(fd_raw, known)(fd);
	struct file *file;
	int new;

	if (fd_empty(known))
		return -EBADF;
	new = get_unused_fd_flags(0);
	if (new < 0)
		return new;
	file = dentry_open(&fd_file(known)->f_path, flags | O_LARGEFILE, current_cred());
	if (IS_ERR(file)) {
		put_unused_fd(new);
		return PTR_ERR(file);
	}
	fd_install(new, file);
	return new;
}

OUTRIGGER_EXPORT s64 outrigger_truncate(u32 fd, u64 size)
{
	CLASS(fd_raw, known)(fd);

	return fd_empty(known) ? -EBADF : vfs_truncate(&fd_file(known)->f_path, size);
}

OUTRIGGER_EXPORT s64 outrigger_get_xattr(u32 fd, const char *name, void *value, u64 size)
{
	CLASS(fd_raw, known)(fd);
	struct xattr_name copy;
	struct xattr_ctx ctx = { .value = value, .size = size, .kname = &copy };
	s64 result;

	if (fd_empty(known))
		return -EBADF;
	if (strscpy(copy.name, name) <= 0)
		return -ERANGE;
	result = do_getxattr(file_mnt_idmap(fd_file(known)), fd_file(known)->f_path.dentry, &ctx);
	kvfree(ctx.kvalue);
	return result;
}

OUTRIGGER_EXPORT s64 outrigger_set_xattr(u32 fd, const char *name, const void *value, u64 size, u32 flags)
{
	CLASS(fd_raw, known)(fd);
	struct xattr_name copy;
	struct xattr_ctx ctx = { .cvalue = value, .size = size, .kname = &copy, .flags = flags };
	const struct path *path;
	s64 result;

	if (fd_empty(known))
		return -EBADF;
	result = setxattr_copy(name, &ctx);
	if (result)
		return result;
	path = &fd_file(known)->f_path;
	result = mnt_want_write(path->mnt);
	if (!result) {
		result = do_setxattr(mnt_idmap(path->mnt), path->dentry, &ctx);
		mnt_drop_write(path->mnt);
	}
	kvfree(ctx.kvalue);
	return result;
}

OUTRIGGER_EXPORT s64 outrigger_list_xattr(u32 fd, char *names, u64 size)
{
	CLASS(fd_raw, known)(fd);

	return fd_empty(known) ? -EBADF : vfs_listxattr(fd_file(known)->f_path.dentry, names, size);
}

OUTRIGGER_EXPORT s64 outrigger_remove_xattr(u32 fd, const char *name)
{
	CLASS(fd_raw, known)(fd);
	const struct path *path;
	s64 result;

	if (fd_empty(known))
		return -EBADF;
	path = &fd_file(known)->f_path;
	result = mnt_want_write(path->mnt);
	if (!result) {
		result = is_posix_acl_xattr(name) ? vfs_remove_acl(mnt_idmap(path->mnt), path->dentry, name)
						  : vfs_removexattr(mnt_idmap(path->mnt), path->dentry, name);
		mnt_drop_write(path->mnt);
	}
	return result;
}
