#!/usr/bin/env bash
# Regenerates crates/fabric/src/ofi/bindings.rs from the headers of the oldest supported libfabric (1.17: Debian 12's libfabric-dev).
# Needs libclang-dev and `cargo install bindgen-cli`. Binds only types: the code looks up functions at run time.
set -euo pipefail
cd "$(dirname "$0")/.."

types='fi_info|fid_fabric|fid_domain|fid_ep|fid_cq|fid_av|fid_mr|fi_cq_attr|fi_av_attr|fi_cq_msg_entry|fi_cq_err_entry|fi_context2'
opaque='fid_(nic|wait|poll|cntr|av_set|pep|stx|mc|eq)|fi_ops_(wait|poll|cntr|eq|atomic|tagged|collective)'
opaque+='|fi_(wait|poll|eq|cntr|atomic|collective|av_set|mr)_attr|fi_msg|fi_msg_rma|fi_hmem_iface'
header=$(mktemp --suffix=.h)
trap 'rm -f "$header"' EXIT
printf '#include <rdma/%s.h>\n' fabric fi_domain fi_endpoint fi_rma fi_cm >"$header"
{
    echo '//! Types of libfabric 1.17, as its headers have them. Made by scripts/libfabric-bindings.sh: not to be changed by hand.'
    bindgen "$header" --allowlist-type "$types" --opaque-type "$opaque" --blocklist-type 'sockaddr.*|iovec|__.*_t' \
        --raw-line 'use libc::iovec;' --no-doc-comments --no-layout-tests --default-enum-style consts \
        --no-prepend-enum-name --ctypes-prefix std::ffi --rust-target 1.85
} >crates/fabric/src/ofi/bindings.rs
