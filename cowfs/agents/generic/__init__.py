"""Any program that says where its conversation lies: its bytes are kept, and not understood."""
