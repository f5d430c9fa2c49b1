package nostr

var DecodeBech32, EncodeBech32 = decodeBech32, encodeBech32
