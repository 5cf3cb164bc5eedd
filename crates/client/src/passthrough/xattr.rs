//! Extended attributes of a view over a tree, passed through to the underlying file system.

use super::TreeView;
use crate::types::FileNumber;
use crate::vfs::Xattrs;
use tameike_core::Result;
use tameike_io::shared::XattrMode;

impl<V: TreeView> Xattrs for V {
    async fn get_xattr(&self, file: FileNumber, name: &[u8]) -> Result<Vec<u8>> {
        let (path, name) = (self.below().path(file)?, name.to_vec());
        self.below().run(move |fs| fs.xattr(&path, &name)).await
    }

    async fn list_xattr(&self, file: FileNumber) -> Result<Vec<Vec<u8>>> {
        let path = self.below().path(file)?;
        self.below().run(move |fs| fs.xattrs(&path)).await
    }

    async fn set_xattr(
        &self,
        file: FileNumber,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        let mode = match (create, replace) {
            (true, _) => XattrMode::Create,
            (false, true) => XattrMode::Replace,
            (false, false) => XattrMode::Any,
        };
        let (path, name, value) = (self.below().path(file)?, name.to_vec(), value.to_vec());
        self.below().run(move |fs| fs.set_xattr(&path, &name, &value, mode)).await
    }

    async fn remove_xattr(&self, file: FileNumber, name: &[u8]) -> Result<()> {
        let (path, name) = (self.below().path(file)?, name.to_vec());
        self.below().run(move |fs| fs.remove_xattr(&path, &name)).await
    }
}
