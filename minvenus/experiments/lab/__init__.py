"""The credit lab: the shipped reward and advantage code on a policy that is a table, in a world whose gains are known."""
