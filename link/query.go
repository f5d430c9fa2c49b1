package link

import "strings"

// parameter is one part of a query.
type parameter struct {
	name string // in lower case
	text string // as written: "name=value" or "name"
}

// parameters returns the parameters of a query without tracking parameters, in order.
func parameters(query string) []parameter {
	var all []parameter
	for text := range strings.SplitSeq(query, "&") {
		if text == "" {
			continue
		}
		p := newParameter(escape(text))
		if !isTracking(p) {
			all = append(all, p)
		}
	}
	return all
}

func newParameter(text string) parameter {
	name, _, _ := strings.Cut(text, "=")
	return parameter{name: strings.ToLower(name), text: text}
}

func (p parameter) value() string {
	_, value, _ := strings.Cut(p.text, "=")
	return value
}

// isTracking reports whether a parameter only records where the reader came from.
// Names that have a meaning on some site ("ref", "source", "id", "token") are not
// included.
func isTracking(p parameter) bool {
	// Pages with broken escaping write "&amp;utm_source=".
	name := strings.TrimPrefix(p.name, "amp;")
	if head, _, ok := strings.Cut(name, "_"); ok {
		switch head {
		case "utm", "mtm", "hsa", "bsft":
			return true
		}
	}
	switch name {
	case "fbclid", "mibextid", "fb_action_ids", "fb_action_types", "fb_source", "fb_ref", "action_object_map", "action_type_map", "action_ref_map", // Facebook
		"gclid", "gclsrc", "dclid", "gbraid", "wbraid", "gad_source", "gad_campaignid", "srsltid", "_gl", "_ga", // Google
		"ga_source", "ga_medium", "ga_campaign", "ga_content", "ga_term", "ga_place", "usqp", "amp_js_v", "amp_gsa",
		"msclkid", "yclid", "ysclid", "ymclid", "_openstat", "twclid", "ttclid", "li_fat_id", "epik", "rdt_cid", "sccid", "s_kwcid", // other advertisers
		"irclickid", "irgwc", "cjevent", "cjdata", "ef_id", "wickedid", "wickedsource", "rb_clickid", "unicorn_click_id", "tblci", "dicbo", "obclid",
		"_branch_match_id", "_branch_referrer", "hss_channel", "soc_src", "soc_trk", "sms_ss", "awesm",
		"igshid", "igsh", // Instagram
		"mc_cid", "mc_eid", "mc_tc", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp", "hsctatracking", "mkt_tok", // newsletters
		"vero_id", "vero_conv", "oly_enc_id", "oly_anon_id", "ck_subscriber_id", "_ke", "_kx", "dm_i", "ml_subscriber", "ml_subscriber_hash",
		"__s", "_bta_tid", "_bta_c", "nr_email_referer", "sfmc_id", "sfmc_sub", "sfmc_j", "sfmc_u", "sfmc_mid", "trk_contact", "trk_msg", "trk_module", "trk_sid",
		"elq", "elqaid", "elqat", "elqtrack", "elqtrackid", "elqcampaignid",
		"pk_campaign", "pk_kwd", "pk_keyword", "pk_source", "pk_medium", "pk_content", "pk_cid", "piwik_campaign", "piwik_kwd", "piwik_keyword", // statistics
		"spm", "cmpid", "wt.mc_id", "wt.mc_ev", "wt.srch", "wt.tsrc", "wt_zmc", "s_cid", "intcmp", "xtor", "ns_campaign", "ns_mchannel", "ns_source",
		"itm_source", "itm_medium", "itm_campaign", "itm_content", "itm_term", "at_medium", "at_campaign", "at_campaign_type", "at_creation",
		"at_custom1", "at_custom2", "at_custom3", "at_custom4", "at_format", "at_link_id", "at_link_origin", "at_link_type", "at_ptr_name", "at_bbc_team",
		"ref_src", "ref_url", "guccounter", "guce_referrer", "guce_referrer_sig", "__twitter_impression":
		return true
	case "amp", "_amp":
		// The value distinguishes the AMP switch from, for example, a shop's
		// amplifier.
		switch p.value() {
		case "", "1", "true":
			return true
		}
	case "outputtype":
		return strings.EqualFold(p.value(), "amp")
	}
	return false
}

// isTrackingOn reports whether a parameter only records where the reader came from
// on the site of a domain.
func isTrackingOn(domain, name string) bool {
	if brand, _, _ := strings.Cut(domain, "."); brand == "amazon" || brand == "ebay" { // a domain in each country
		return isTrackingInShop(name)
	}
	switch domain {
	case "youtube.com":
		switch name {
		case "si", "feature", "t", "pp", "ab_channel", "app", "time_continue":
			return true
		}
	case "spotify.com":
		return name == "si" || name == "nd"
	case "soundcloud.com":
		return name == "si"
	case "x.com":
		return name == "t" || name == "s"
	case "threads.com", "threads.net":
		return name == "xmt" || name == "slof"
	case "tiktok.com":
		switch name {
		case "_t", "_r", "_d", "is_from_webapp", "is_copy_url", "sender_device", "web_id":
			return true
		}
	case "facebook.com":
		switch name {
		case "ref", "fref", "hc_ref", "refsrc", "rdid", "share_url", "sfnsn", "__tn__", "__cft__%5b0%5d", "notif_id", "notif_t", "acontext":
			return true
		}
	case "reddit.com":
		return name == "share_id" || name == "rdt" || name == "ref" || name == "ref_source"
	case "linkedin.com":
		switch name {
		case "trk", "trackingid", "lipi", "rcm", "refid":
			return true
		}
	case "wikipedia.org":
		return name == "wprov"
	case "substack.com":
		switch name {
		case "r", "s", "isfreemail", "showwelcomeonshare", "triedredirect", "source":
			return true
		}
	case "medium.com":
		return name == "source" || name == "gi"
	case "imdb.com", "etsy.com", "goodreads.com", "producthunt.com":
		return name == "ref" || name == "ref_"
	}
	return isTrackingOnNews(domain, name)
}

func isTrackingInShop(name string) bool {
	switch name {
	case "ref", "ref_", "tag", "linkcode", "linkid", "qid", "sr", "crid", "sprefix", "dib", "dib_tag", "camp", "creative", "creativeasin",
		"ascsubtag", "content-id", "pd_rd_i", "pd_rd_r", "pd_rd_w", "pd_rd_wg", "pf_rd_p", "pf_rd_r", "pf_rd_s", "pf_rd_t", "pf_rd_i", "pf_rd_m",
		"mkevt", "mkcid", "mkrid", "campid", "toolid", "customid", "_trkparms", "_trksid":
		return true
	}
	return false
}

func isTrackingOnNews(domain, name string) bool {
	switch domain {
	case "nytimes.com":
		switch name {
		case "smid", "smtyp", "referringsource", "partner", "emc", "campaign_id", "instance_id", "segment_id", "regi_id", "user_id":
			return true
		}
	case "washingtonpost.com":
		switch name {
		case "itid", "wpisrc", "wpmk":
			return true
		}
	case "wsj.com", "barrons.com", "marketwatch.com":
		return name == "mod"
	case "bloomberg.com":
		return name == "leadsource" || name == "sref" || name == "srnd"
	case "ft.com":
		return name == "segmentid"
	case "economist.com":
		return name == "taid"
	case "theguardian.com":
		return name == "cmp"
	case "bbc.com", "bbc.co.uk":
		return name == "ocid"
	case "msn.com":
		return name == "ocid" || name == "cvid" || name == "pc" || name == "ei"
	case "cnn.com":
		return name == "cid" || name == "iid"
	case "go.com", "nbcnews.com":
		return name == "cid" || name == "icid"
	case "cbsnews.com":
		return name == "ftag" || name == "intcid"
	case "cnbc.com":
		return name == "__source"
	case "reuters.com":
		return name == "taid"
	case "huffpost.com", "huffingtonpost.com", "techcrunch.com", "aol.com":
		return name == "ncid"
	case "thedailybeast.com":
		return name == "ref" || name == "source" || name == "via"
	case "wired.com", "newyorker.com", "vanityfair.com", "vogue.com":
		switch name {
		case "mbid", "esrc", "bxid", "cndid", "_sp", "source":
			return true
		}
	case "lemonde.fr":
		switch name {
		case "lmd_medium", "lmd_campaign", "lmd_creation", "lmd_source", "lmd_link", "random":
			return true
		}
	case "spiegel.de":
		return name == "sara_ref" || name == "sara_ecid"
	case "nzz.ch":
		return name == "mktcid" || name == "mktcval"
	}
	return false
}
