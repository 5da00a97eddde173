"""What a user gives to an edit: columns and keys, checked before they are cast."""
