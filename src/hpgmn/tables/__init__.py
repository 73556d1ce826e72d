"""Node and edge tables, edge lists, GraphML and networkx graphs as arrays of a graph."""
