"""Work that runs on a cloud engine, behind the interfaces of the engines here."""
