"""What is stated beside images: their classes, owners and splits."""
