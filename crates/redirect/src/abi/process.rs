//! Initialization of the library in a process.

// SAFETY: the loader calls these functions once, after the C library is initialized.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    tameike_interpose::guarded::<()>(|| {
        crate::spool::begin();
        crate::spool::get()?;
        super::environment::keep(begin as *const std::ffi::c_void);
        None
    });
}
