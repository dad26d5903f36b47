"""Where jobs live: the protocol, the registry, and one room for each storage. Rooms never see each other."""
