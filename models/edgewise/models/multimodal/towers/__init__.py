"""Networks that make rows of a decoder's input of pictures. They compute every item by itself."""
