#!/usr/bin/env bash
# Regenerates crates/fabric/src/ofi/bindings.rs from the headers of the oldest supported libfabric (1.17: Debian 12's libfabric-dev).
# Needs libclang-dev and `cargo install bindgen-cli`. Binds only types: the code looks up functions at run time.
set -euo pipefail
cd "$(dirname "$0")/.."

# The types that the code accesses, and the scalar types in them.
types='fid|fid_t|fid_(fabric|domain|ep|cq|av|mr)|fi_ops|fi_ops_(fabric|domain|mr|cm|msg|rma|cq|av)'
types+='|fi_info|fi_(ep|domain|fabric|cq|av)_attr|fi_cq_(msg|err)_entry|fi_context2'
types+='|fi_addr_t|fi_(av|ep)_type|fi_cq_(format|wait_cond)|fi_progress|fi_resource_mgmt|fi_threading|fi_wait_obj'
# The members of function tables that the code calls, and the constants that it names. Pointers to other functions and structures
# become untyped.
export CALLS='close|bind|control|domain|trywait|av_open|cq_open|endpoint|reg|getname|recv|send|read|readerr|insert|remove'
export CONSTANTS='FI_AV_TABLE|FI_CQ_FORMAT_MSG|FI_EP_RDM|FI_RM_ENABLED|FI_THREAD_DOMAIN|FI_WAIT_(FD|NONE)'
export OPAQUE='fid_(nic|wait)|fi_ops_(ep|tagged|atomic|collective)|fi_[rt]x_attr'
header=$(mktemp --suffix=.h)
trap 'rm -f "$header"' EXIT
printf '#include <rdma/%s.h>\n' fabric fi_domain fi_endpoint fi_rma fi_cm >"$header"
{
    echo '//! Types of libfabric 1.17, as its headers have them. Made by scripts/libfabric-bindings.sh: not to be changed by hand.'
    bindgen "$header" --allowlist-type "$types" --no-recursive-allowlist --no-derive-copy --no-derive-debug --no-doc-comments \
        --no-layout-tests --default-enum-style consts --no-prepend-enum-name --ctypes-prefix std::ffi --rust-target 1.85 |
        perl -0pe '
            s/^    pub (?!(?:$ENV{CALLS}):)(\w+):\s*::std::option::Option<.*?>,\n/    pub $1: *mut std::ffi::c_void,\n/gms;
            s/^pub const (?!(?:$ENV{CONSTANTS}):)\w+: \w+ = \d+;\n//gm;
            s/\*mut (?:$ENV{OPAQUE}),/*mut std::ffi::c_void,/g'
} >crates/fabric/src/ofi/bindings.rs
