"""What models see in pictures: labels and text."""
