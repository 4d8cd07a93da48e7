"""What backbones are made of besides attention: blocks, embeddings, maps and tokens, and the parts of XCiT."""
