"""Parts of backbones besides attention: blocks, embeddings, maps and tokens, and the parts of XCiT."""
